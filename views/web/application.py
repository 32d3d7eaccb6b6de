"""The ASGI application of the pages: routes, permissions, error pages."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import orjson
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.stores.jobstats.client import UnansweredError
from ccagent.views.amounts import plural
from ccagent.views.web import addresses
from ccagent.views.web.addresses import decode_segment, read_moment
from ccagent.views.web.context import NotAllowedError, PageRequest, PageSources
from ccagent.views.web.data.job_search import JobSearchError
from ccagent.views.web.pages.cluster_page import make_cluster_page
from ccagent.views.web.pages.filters import RANGES
from ccagent.views.web.pages.job_page import make_compare_page, make_job_page
from ccagent.views.web.pages.jobs_page import JobsPage, make_jobs_page
from ccagent.views.web.pages.lustre_page import LustrePage, make_lustre_page
from ccagent.views.web.pages.node_page import make_node_page
from ccagent.views.web.pages.usage_page import UsageError, UsagePage, make_usage_page
from ccagent.views.web.rendering import bokeh_version, keep_zone, read_zone, render
from ccagent.views.web.replies import (
    SECONDS,
    ZOOM_POLICY,
    GuardedApplication,
    TimedCache,
    answer_bokeh,
    answer_static,
    pack_page,
    read_age,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from starlette.requests import Request

    from ccagent.views.web.access import PageAccess, Viewer
    from ccagent.views.web.plots import PagePlot
    from ccagent.views.web.replies import MadePage

_MOST_PAGES = 64 << 20
_MOST_MODELS = 128 << 20
_DRAWN, _ZOOMED, _WRITTEN = 240, 600, 6000
"""Maximum of points per series: in SVG, in the browser's plots, and in CSV."""

_LONGEST_ADDRESS = 4096
_FOR_PROGRAMS = ("/data/", "/csv/")
_PARAMETERS = frozenset({
    "range", "from", "to", "q", "state", "verdict", "page", "plot", "zoom", "at", "sort", "by",
    "user", "account", "partition", "node", "rule", "show", *RANGES,
})  # fmt: skip
_LISTS = frozenset({"jobs", "plots"})
"""Known parameters of the URL, and those that checkboxes repeat. Others are ignored: they must not
bypass the cache."""

_MOMENTS = frozenset({"from", "to", "at"})
"""Parameters with times: seconds since 1970, or ISO 8601 in the zone of the page."""


class PageKind(NamedTuple):
    """A kind of page: path, template, and function that builds its content."""

    path: str
    template: str
    make: Callable[[PageSources, PageRequest], Awaitable[Any]]


PAGES = (
    PageKind("/cluster/{cluster}", "cluster.html", make_cluster_page),
    PageKind("/cluster/{cluster}/node/{node}", "node.html", make_node_page),
    PageKind("/cluster/{cluster}/jobs", "jobs.html", make_jobs_page),
    PageKind("/cluster/{cluster}/compare", "compare.html", make_compare_page),
    PageKind("/cluster/{cluster}/job/{job}", "job.html", make_job_page),
    PageKind("/cluster/{cluster}/job/{job}/{start}", "job.html", make_job_page),
    PageKind("/lustre", "lustre.html", make_lustre_page),
    PageKind("/usage", "usage.html", make_usage_page),
)


class _LoginRequiredError(CcagentError):
    """The request has no valid login."""


class PageApplication:
    """The application of the pages."""

    def __init__(
        self, sources: PageSources, access: PageAccess, *, hosts: tuple[str, ...] = ()
    ) -> None:
        """hosts: names of this server; requests with other names are refused. Empty: any name."""
        self._sources = sources
        self._access = access
        self._models: TimedCache[Any] = TimedCache(_MOST_MODELS, _size_of)
        self._pages: TimedCache[MadePage] = TimedCache(_MOST_PAGES, lambda page: page.size)
        routes = [
            Route("/", self._front),
            Route("/search", self._search),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._access.log_out, methods=["POST"]),
            Route("/static/{version}/{name}", answer_static),
            Route("/bokeh/{version}/{name}", answer_bokeh),
            Route("/job/{job}", self._any_job),
            Route("/zone", self._zone),
        ]
        for kind in PAGES:
            for prefix, answer in (("", self._page), ("/data", self._data), ("/csv", self._csv)):
                routes.append(Route(f"{prefix}{kind.path}", partial(answer, kind)))
        errors = (
            HTTPException, NotAllowedError, JobSearchError, UnansweredError, UsageError,
            _LoginRequiredError,
        )  # fmt: skip
        pages = ExceptionMiddleware(Router(routes), dict.fromkeys(errors, self._explain))
        self.app = GuardedApplication(pages, hosts, self._fail)

    # pages

    async def _page(self, kind: PageKind, request: Request) -> Response:
        wanted, age = self._read_request(request, _DRAWN), read_age(request)
        shown = read_zone(request)

        async def make() -> MadePage:
            model = await self._model(kind, wanted, age)
            return pack_page("text/html", self._render(kind, wanted, request, model))

        key = _key(kind, wanted, wanted.viewer), str(shown.zone), shown.is_unknown

        more = {"Content-Security-Policy": ZOOM_POLICY} if _zooms(wanted) else {}
        page = await self._pages.get(key, make, age)
        return reply(request, page, more)

    async def _data(self, kind: PageKind, request: Request) -> Response:
        wanted = self._read_request(request, _ZOOMED)

        async def make() -> MadePage:
            model = await self._model(kind, wanted)
            chosen = wanted.chosen_plots
            found = {
                "made": self._sources.now,
                "plots": [one.as_json() for one in model.plots if not chosen or one.key in chosen],
            }
            found |= getattr(model, "tables", {})
            return pack_page("application/json", orjson.dumps(found))

        key = "data", _key(kind, wanted, wanted.viewer.scope)
        return reply(request, await self._pages.get(key, make))

    async def _csv(self, kind: PageKind, request: Request) -> Response:
        wanted = self._read_request(request, _WRITTEN)
        model = await self._model(kind, wanted)
        key = wanted.query.get("plot", "")
        if not key and isinstance(model, JobsPage | LustrePage | UsagePage):
            body, name = model.as_csv(), "usage" if isinstance(model, UsagePage) else "jobs"
        else:
            plot = next((one for one in model.plots if one.key == key), None)
            if plot is None:
                raise HTTPException(404, "this page does not have the plot")
            body, name = plot.as_csv(), plot.key
        file = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:80]
        headers = {"Content-Disposition": f'attachment; filename="{file}.csv"'}
        return Response(body.encode("utf-8", "replace"), headers=headers, media_type="text/csv")

    async def _model(self, kind: PageKind, wanted: PageRequest, age: float = SECONDS) -> Any:
        """Return the content of a page. Viewers with the same permissions share it."""
        key = _key(kind, wanted, wanted.viewer.scope)
        model = await self._models.get(key, lambda: kind.make(self._sources, wanted), age)
        if model is None:
            raise HTTPException(404, "the store has no data of this name")
        return model

    def _render(self, kind: PageKind, wanted: PageRequest, request: Request, model: Any) -> bytes:
        # Only known parameters: the page is shared with other viewers.
        query = f"?{urlencode(wanted.query)}" if wanted.query else ""
        path = request.url.path
        values = {
            **self._common(request, wanted.viewer),
            "page": model,
            "cluster": wanted.names.get("cluster", ""),
            "simulated": wanted.names.get("cluster") in self._sources.simulated,
            "path": path,
            "query": defaultdict(str, wanted.query),
            "csv_link": f"/csv{path}{query}",
            "zooms": _zooms(wanted),
            "zoom_link": _turn_zoom(path, wanted) if bokeh_version() and model.plots else "",
            "data_link": f"/data{path}{query}",
            "here": f"{path}{query}",
        }
        return render(kind.template, values, self._sources.now)

    def _common(self, request: Request, viewer: Viewer | None) -> dict[str, Any]:
        return {
            "viewer": viewer,
            "shown": read_zone(request),
            "has_session": self._access.has_session(request),
            "is_demo": bool(self._sources.simulated),
            "has_lustre": viewer is not None and self._sources.lustre is not None,
            "has_usage": viewer is not None and self._sources.usage is not None,
        }

    # login, search, redirects

    async def _front(self, request: Request) -> Response:
        viewer = self._find_viewer(request)
        known = self._sources.store.root.children
        names = sorted({*known, *await self._sources.jobs.clusters()})
        if len(names) == 1:
            return RedirectResponse(addresses.cluster_link(names[0]), 302)
        found = [
            {
                "name": name,
                "text": plural(len(known[name].children), "node") if name in known else "no nodes",
            }
            for name in names
        ]
        values = {**self._common(request, viewer), "clusters": found}
        page = pack_page("text/html", render("front.html", values, self._sources.now))
        return reply(request, page)

    async def _search(self, request: Request) -> Response:
        viewer = self._find_viewer(request)
        text = request.query_params.get("q", "").strip()[:200]
        cluster = request.query_params.get("cluster", "")
        known = self._sources.store.root.children
        if not cluster:
            found = await self._sources.jobs.runs("", text) if text else []
            runs = [one for one in found if viewer.may_see(one.user)]
            nodes = [one for one in known if text in known[one].children]
            cluster = runs[-1].cluster if runs else (nodes[0] if nodes else "")
        if not text or not cluster:
            return RedirectResponse(addresses.jobs_link(cluster) if cluster else "/", 302)
        if any(viewer.may_see(run.user) for run in await self._sources.jobs.runs(cluster, text)):
            return RedirectResponse(addresses.job_link(cluster, text), 302)
        if self._sources.find_node(cluster, text) is not None:
            return RedirectResponse(addresses.node_link(cluster, text), 302)
        return RedirectResponse(addresses.jobs_link(cluster, q=text), 302)

    async def _any_job(self, request: Request) -> Response:
        """Redirect from a job's number to its page, in any cluster."""
        viewer = self._find_viewer(request)
        name = _decoded(request.path_params["job"])
        runs = [one for one in await self._sources.jobs.runs("", name) if viewer.may_see(one.user)]
        if not runs:
            raise HTTPException(404, "the store has no such job")
        return RedirectResponse(addresses.job_link(runs[-1].cluster, name), 302)

    async def _zone(self, request: Request) -> Response:
        return keep_zone(request, self._access.next_page(request.query_params.get("next", "")))

    async def _login(self, request: Request) -> Response:
        def show(place: str, problem: str, status: int) -> Response:
            values = {
                **self._common(request, None),
                "takes_tokens": self._access.takes_tokens,
                "next": place,
                "problem": problem,
            }
            return Response(render("login.html", values), status, media_type="text/html")

        if request.method == "POST":
            return await self._access.log_in(request, show)
        return show(self._access.next_page(request.query_params.get("next", "")), "", 200)

    # errors

    async def _explain(self, request: Request, error: Exception) -> Response:
        """Return the page of an error that the viewer can do something about."""
        match error:
            case HTTPException():
                answer = self._message(request, error.status_code, error.detail)
                answer.headers.update(error.headers or {})
                return answer
            case _LoginRequiredError() if not request.url.path.startswith(_FOR_PROGRAMS):
                return self._access.ask_login(request)
            case _LoginRequiredError():
                return self._message(request, 401, "log in, or send a token")
            case NotAllowedError():
                return self._message(request, 403, str(error))
            case _:
                return self._message(request, 503, str(error))

    def _fail(self, request: Request, error: Exception) -> Response:
        logger.error("page %s failed", request.url.path, exc_info=error)
        return self._message(request, 500, "an error in the store; see its log")

    def _message(self, request: Request, status: int, text: str) -> Response:
        if request.url.path.startswith(_FOR_PROGRAMS):
            return Response(f"{text}\n", status, media_type="text/plain")
        values = {
            **self._common(request, self._access.find_viewer(request)), "text": text,
            "heading": _HEADINGS.get(status, "Request failed"),
        }  # fmt: skip
        return Response(render("message.html", values), status, media_type="text/html")

    def _find_viewer(self, request: Request) -> Viewer:
        viewer = self._access.find_viewer(request)
        if viewer is None:
            raise _LoginRequiredError
        return viewer

    def _read_request(self, request: Request, points: int) -> PageRequest:
        """Parse a request. Raise HTTPException if a name is malformed or the URL is too long."""
        viewer = self._find_viewer(request)
        if len(request.url.query) > _LONGEST_ADDRESS:
            raise HTTPException(400, "the address is too long")
        names = {name: _decoded(str(text)) for name, text in request.path_params.items()}
        given = request.query_params
        query = {name: text for name, text in given.items() if name in _PARAMETERS}
        query |= {name: ",".join(given.getlist(name)) for name in _LISTS if name in given}
        zone = read_zone(request).zone
        # Content does not depend on the viewer's zone: viewers share it.
        for name in _MOMENTS & query.keys():
            moment = read_moment(query[name], zone)
            query[name] = query[name] if moment is None else str(moment)
        return PageRequest(viewer, names, query, points)


_HEADINGS = {
    400: "Not understood", 401: "Log in first", 403: "Not allowed", 404: "Not found",
    405: "Not understood", 503: "Try again",
}  # fmt: skip


def _decoded(text: str) -> str:
    try:
        return decode_segment(text)
    except ValueError as error:
        raise HTTPException(404, str(error)) from None


def _zooms(wanted: PageRequest) -> bool:
    return wanted.query.get("zoom") == "1" and bool(bokeh_version())


def _turn_zoom(path: str, wanted: PageRequest) -> str:
    """Return the address of the page with SVG instead of Bokeh's plots, or the reverse."""
    query = {name: text for name, text in wanted.query.items() if name != "zoom"}
    if not _zooms(wanted):
        query["zoom"] = "1"
    return f"{path}?{urlencode(query)}" if query else path


def _key(kind: PageKind, wanted: PageRequest, viewer: Viewer) -> Hashable:
    names, query = tuple(wanted.names.items()), tuple(sorted(wanted.query.items()))
    return kind.path, names, query, wanted.points, viewer


def _size_of(model: Any) -> int:
    """Return the approximate size of a page's content in bytes."""
    plots: list[PagePlot] = [] if model is None else model.plots
    return 200_000 + sum(line.values.mean.nbytes * 3 for plot in plots for line in plot.lines)
