"""The ASGI application of the pages: routes, permissions, error pages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import orjson
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from ccagent.log import logger
from ccagent.views.web import addresses
from ccagent.views.web.access import Sessions
from ccagent.views.web.addresses import decode_segment
from ccagent.views.web.context import NotAllowedError, PageRequest, split_keys
from ccagent.views.web.data.job_search import JobSearchError
from ccagent.views.web.pages.cluster_page import make_cluster_page
from ccagent.views.web.pages.job_page import make_job_page
from ccagent.views.web.pages.jobs_page import make_jobs_page
from ccagent.views.web.pages.node_page import make_node_page
from ccagent.views.web.rendering import bokeh_version, render
from ccagent.views.web.replies import (
    ZOOM_POLICY,
    GuardedApplication,
    TimedCache,
    answer_bokeh,
    answer_static,
    pack_page,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from starlette.requests import Request

    from ccagent.views.web.access import PageAccess, Viewer
    from ccagent.views.web.context import PageSources
    from ccagent.views.web.plots import PagePlot
    from ccagent.views.web.replies import MadePage

_MOST_PAGES = 64 << 20
_MOST_MODELS = 128 << 20
_DRAWN, _ZOOMED, _WRITTEN = 240, 600, 6000
"""Maximum of points per series: in SVG, in the browser's plots, and in CSV."""

_LONGEST_ADDRESS = 4096
_PARAMETERS = frozenset({
    "range", "from", "to", "q", "state", "verdict", "page", "plot", "zoom",
})  # fmt: skip
"""Known parameters of the URL. Others are ignored: they must not bypass the cache."""


class PageKind(NamedTuple):
    """A kind of page: path, template, and function that builds its content."""

    path: str
    template: str
    make: Callable[[PageSources, PageRequest], Awaitable[Any]]


PAGES = (
    PageKind("/cluster/{cluster}", "cluster.html", make_cluster_page),
    PageKind("/cluster/{cluster}/node/{node}", "node.html", make_node_page),
    PageKind("/cluster/{cluster}/jobs", "jobs.html", make_jobs_page),
    PageKind("/cluster/{cluster}/job/{job}", "job.html", make_job_page),
    PageKind("/cluster/{cluster}/job/{job}/{start}", "job.html", make_job_page),
)


class PageApplication:
    """The application of the pages."""

    def __init__(
        self,
        sources: PageSources,
        access: PageAccess,
        *,
        hosts: tuple[str, ...] = (),
        is_demo: bool = False,
    ) -> None:
        """hosts: names of this server; requests with other names are refused. Empty: any name."""
        self._sources = sources
        self._access = access
        self._sessions = Sessions(access)
        self._is_demo = is_demo
        self._models: TimedCache[Any] = TimedCache(_MOST_MODELS, _size_of)
        self._pages: TimedCache[MadePage] = TimedCache(_MOST_PAGES, lambda page: page.size)
        routes = [
            Route("/", self._front),
            Route("/search", self._search),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._sessions.log_out, methods=["POST"]),
            Route("/static/{version}/{name}", answer_static),
            Route("/bokeh/{version}/{name}", answer_bokeh),
            Route("/job/{job}", self._any_job),
        ]
        for kind in PAGES:
            routes += [
                Route(kind.path, self._page(kind)),
                Route(f"/data{kind.path}", self._data(kind)),
                Route(f"/csv{kind.path}", self._csv(kind)),
            ]
        pages = ExceptionMiddleware(
            Router(routes),
            handlers={
                HTTPException: self._refuse,
                NotAllowedError: self._forbid,
                JobSearchError: self._fail_search,
            },
        )
        self.app = GuardedApplication(pages, hosts, self._fail)

    # pages

    def _page(self, kind: PageKind) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = self._access.find_viewer(request)
            if viewer is None:
                return self._ask_login(request)
            wanted = _read_request(request, viewer, _DRAWN)

            async def make() -> MadePage:
                model = await self._model(kind, wanted)
                return pack_page(200, "text/html", self._render(kind, wanted, request, model))

            more = {"Content-Security-Policy": ZOOM_POLICY} if _zooms(wanted) else {}
            return reply(request, await self._pages.get(_key(kind, wanted, viewer), make), more)

        return answer

    def _data(self, kind: PageKind) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = self._access.find_viewer(request)
            if viewer is None:
                raise HTTPException(401, "log in, or send a token")
            wanted = _read_request(request, viewer, _ZOOMED)

            async def make() -> MadePage:
                model = await self._model(kind, wanted)
                plots = _chosen(model.plots, wanted.query.get("plot", ""))
                found = {
                    "made": self._sources.now,
                    "offset": time.localtime(self._sources.now).tm_gmtoff,
                    "plots": [one.as_json() for one in plots],
                }
                if hasattr(model, "jobs") and hasattr(model, "as_csv"):
                    found["jobs"] = model.jobs
                return pack_page(200, "application/json", orjson.dumps(found))

            scope = viewer._replace(name="") if viewer.is_staff else viewer
            return reply(request, await self._pages.get(("data", _key(kind, wanted, scope)), make))

        return answer

    def _csv(self, kind: PageKind) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = self._access.find_viewer(request)
            if viewer is None:
                raise HTTPException(401, "log in, or send a token")
            wanted = _read_request(request, viewer, _WRITTEN)
            model = await self._model(kind, wanted)
            key = wanted.query.get("plot", "")
            if not key and hasattr(model, "as_csv"):
                body, name = model.as_csv(), "jobs"
            else:
                plots = [one for one in model.plots if one.key == key]
                if not plots:
                    raise HTTPException(404, "this page does not have the plot")
                body, name = plots[0].as_csv(), plots[0].key
            file = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:80]
            headers = {"Content-Disposition": f'attachment; filename="{file}.csv"'}
            return Response(body, headers=headers, media_type="text/csv")

        return answer

    async def _model(self, kind: PageKind, wanted: PageRequest) -> Any:
        """Return the content of a page. Viewers with the same permissions share it."""
        viewer = wanted.viewer
        scope = viewer._replace(name="") if viewer.is_staff else viewer

        async def make() -> Any:
            return await kind.make(self._sources, wanted)

        model = await self._models.get(_key(kind, wanted, scope), make)
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
            "cluster": wanted.names["cluster"],
            "simulated": wanted.names["cluster"] in self._sources.simulated,
            "path": path,
            "csv_link": f"/csv{path}{query}",
            "zooms": _zooms(wanted),
            "zoom_link": _turn_zoom(path, wanted) if bokeh_version() and model.plots else "",
            "data_link": f"/data{path}{query}",
        }
        return render(kind.template, values, self._sources.now)

    def _common(self, request: Request, viewer: Viewer | None) -> dict[str, Any]:
        return {
            "viewer": viewer,
            "has_session": self._sessions.has_session(request),
            "is_demo": self._is_demo,
        }

    # login, search, redirects

    async def _front(self, request: Request) -> Response:
        viewer = self._access.find_viewer(request)
        if viewer is None:
            return self._ask_login(request)
        known = self._sources.store.root.children
        names = sorted({*known, *await self._sources.jobs.clusters()})
        if len(names) == 1:
            return RedirectResponse(addresses.cluster_link(names[0]), 302)
        found = [
            {
                "name": name,
                "text": f"{len(known[name].children)} nodes" if name in known else "no nodes",
            }
            for name in names
        ]
        values = {**self._common(request, viewer), "clusters": found}
        page = pack_page(200, "text/html", render("front.html", values, self._sources.now))
        return reply(request, page)

    async def _search(self, request: Request) -> Response:
        viewer = self._access.find_viewer(request)
        if viewer is None:
            return self._ask_login(request)
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
        viewer = self._access.find_viewer(request)
        if viewer is None:
            return self._ask_login(request)
        name = _decoded(request.path_params["job"])
        runs = [one for one in await self._sources.jobs.runs("", name) if viewer.may_see(one.user)]
        if not runs:
            raise HTTPException(404, "the store has no such job")
        return RedirectResponse(addresses.job_link(runs[-1].cluster, name), 302)

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
            return await self._sessions.log_in(request, show)
        return show(self._sessions.next_page(request.query_params.get("next", "")), "", 200)

    def _ask_login(self, request: Request) -> Response:
        return self._sessions.ask_login(request)

    # errors

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        reason = str(getattr(error, "detail", ""))
        answer = self._message(request, status, _HEADINGS.get(status, "Request failed"), reason)
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer

    async def _forbid(self, request: Request, error: Exception) -> Response:
        return self._message(request, 403, "Not allowed", str(error))

    async def _fail_search(self, request: Request, error: Exception) -> Response:
        return self._message(request, 503, "Try again", str(error))

    def _fail(self, request: Request, error: Exception) -> Response:
        logger.error("page %s failed", request.url.path, exc_info=error)
        text = "an error in the store; see its log"
        return self._message(request, 500, "Request failed", text)

    def _message(self, request: Request, status: int, heading: str, text: str) -> Response:
        if request.url.path.startswith(("/data/", "/csv/")):
            return Response(f"{text}\n", status, media_type="text/plain")
        values = {
            **self._common(request, self._access.find_viewer(request)),
            "heading": heading, "text": text, "back": "/", "back_text": "All clusters",
        }  # fmt: skip
        return Response(render("message.html", values), status, media_type="text/html")


_HEADINGS = {
    400: "Not understood", 401: "Log in first", 403: "Not allowed", 404: "Not found",
    405: "Not understood",
}  # fmt: skip


def _read_request(request: Request, viewer: Viewer, points: int) -> PageRequest:
    """Parse a request. Raise HTTPException if a name is malformed or the URL is too long."""
    if len(request.url.query) > _LONGEST_ADDRESS:
        raise HTTPException(400, "the address is too long")
    names = {name: _decoded(str(text)) for name, text in request.path_params.items()}
    query = {name: text for name, text in request.query_params.items() if name in _PARAMETERS}
    return PageRequest(viewer, names, query, points)


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


def _chosen(plots: list[PagePlot], keys: str) -> list[PagePlot]:
    wanted = split_keys(keys)
    return [one for one in plots if not wanted or one.key in wanted]
