"""The page of Lustre: what targets do now, and which jobs cause it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.client import UnansweredError
from ccagent.views.amounts import NOT_KNOWN, format_number, format_quantity, format_share
from ccagent.views.terminal import write_csv
from ccagent.views.web.addresses import any_job_link, job_link, read_moment
from ccagent.views.web.context import MOST_LUSTRE_JOBS
from ccagent.views.web.drawing import draw_meter
from ccagent.views.web.pages.filters import SortedColumn
from ccagent.views.web.rendering import STATES

if TYPE_CHECKING:
    from markupsafe import Markup

    from ccagent.stores.jobstats.live import LiveAnswer, LiveJob, LiveOrder, LiveTarget
    from ccagent.stores.jobstats.queries import JobFileSystem
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.web.access import Viewer
    from ccagent.views.web.context import PageRequest, PageSources

_FAR = 3.0
"""A factor from which a rate is far from that of the hour before, up or down."""

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("share", "share"), ("bytes", "read"), ("bytes", "written"), ("metadata", "metadata"),
    ("", "mostly"), ("latency", "latency"), ("", "since"),
)  # fmt: skip
"""Columns of jobs with figures: order, and title."""


class ShownFactor(NamedTuple):
    """A rate as a multiple of an earlier one. level: `hint` if it is far above it, else empty."""

    level: str
    shape: str
    word: str


class LustreJob(NamedTuple):
    """A row of the jobs. link: address of its page, "" without one. since: seconds since 1970."""

    job: LiveJob
    link: str
    share: tuple[Markup, str]
    latency: str
    since: float | None
    factor: ShownFactor


class LustreTarget(NamedTuple):
    """A row of the targets."""

    target: LiveTarget
    read_latency: str
    write_latency: str
    factor: ShownFactor
    latency: str
    slower: ShownFactor
    free: str


class LustrePage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page.

    at: seconds since 1970, None for now. time: `at`, else now. note: why the tables
    are empty. problem: error in the query. failure: why the store has not answered.
    """

    at: int | None
    time: int
    order: str
    columns: list[SortedColumn]
    now_link: str
    targets: list[LustreTarget]
    jobs: list[LustreJob]
    is_cut: bool
    note: str
    problem: str
    failure: str
    plots: tuple[()] = ()

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON. Raise UnansweredError without an answer of the store."""
        if self.failure:
            raise UnansweredError(self.failure)
        return {
            "targets": [msgspec.to_builtins(row.target) for row in self.targets],
            "jobs": [msgspec.to_builtins(row.job) for row in self.jobs],
        }

    def as_csv(self) -> str:
        """Return CSV with one line per job. Raise as `tables` does."""
        jobs: list[dict[str, object]] = self.tables["jobs"]
        return write_csv(_FIELDS, (one.values() for one in jobs))


_FIELDS = (
    "job", "file_system", "user", "account", "state", "nodes", "share", "read_bytes",
    "write_bytes", "metadata", "dominant", "dominant_rate", "latency", "since", "factor",
)  # fmt: skip


async def make_lustre_page(sources: PageSources, request: PageRequest) -> LustrePage | None:
    """Return the page; None if no jobstats store is configured."""
    source = sources.lustre
    if source is None:
        return None
    orders: dict[str, LiveOrder] = {one: one for one in source.orders}
    order = orders.get(request.query.get("sort", ""), source.orders[0])
    text = request.query.get("at", "")
    at = read_moment(text) if text else None
    answer, failure = None, ""
    try:
        answer = await source.find_live(order, at)
    except (UnansweredError, ConfigurationError) as error:
        failure = explain_failure(error, request.viewer)
    jobs = answer.jobs if answer else []
    return LustrePage(
        at=at,
        time=sources.now if at is None else at,
        order=order,
        columns=[
            SortedColumn(
                title,
                _link(name, at) if name and name != order else "",
                "descending" if name == order else "",
            )
            for name, title in _COLUMNS
        ],
        now_link=_link(order, None),
        targets=[_show_target(one) for one in (answer.targets if answer else [])],
        jobs=[_show_job(one) for one in jobs if _may_see(request.viewer, one)],
        is_cut=len(jobs) >= MOST_LUSTRE_JOBS,
        note=_describe_nothing(answer),
        problem="at is not a valid time" if text and at is None else "",
        failure=failure,
    )


class JobIo(NamedTuple):
    """The I/O of a job by file system. failure: why it is unknown."""

    rows: list[JobFileSystem]
    failure: str = ""


async def find_job_io(sources: PageSources, job: StoredJob, viewer: Viewer) -> JobIo | None:
    """Return the I/O of a job that the jobstats store knows; None if no store is configured."""
    if sources.lustre is None:
        return None
    try:
        answer = await sources.lustre.find_job(job, sources.now)
    except (UnansweredError, ConfigurationError) as error:
        return JobIo([], explain_failure(error, viewer))
    return JobIo(answer.file_systems if answer else [])


def explain_failure(error: Exception, viewer: Viewer) -> str:
    """Return why the store has not answered. Only staff see addresses and file names."""
    if viewer.is_staff:
        return f"The jobstats store has not answered: {error}"
    return "The jobstats store has not answered: try again later, or ask the staff"


def _may_see(viewer: Viewer, job: LiveJob) -> bool:
    # Without Slurm's data, the user of a job is what any client has claimed.
    return viewer.is_staff or (bool(job.state) and viewer.may_see(job.user))


def _link(order: str, at: int | None) -> str:
    values = {"sort": order} | ({} if at is None else {"at": str(at)})
    return f"/lustre?{urlencode(values)}"


def _describe_nothing(answer: LiveAnswer | None) -> str:
    if answer is None or answer.targets:
        return ""
    return answer.note or "no records"


def _show_target(one: LiveTarget) -> LustreTarget:
    rate = one.operations if "-MDT" in one.target else one.read_bytes + one.write_bytes
    ratio = 0.0 if one.factor is None and one.before and not rate else one.factor
    return LustreTarget(
        one,
        _show_latency(one.read_latency, one.read_bytes),
        _show_latency(one.write_latency, one.write_bytes),
        _show_factor(ratio, "new" if rate else "idle"),
        _show_latency(one.latency, 1.0),
        _show_factor(one.slower, "") if one.slower else ShownFactor("", "", ""),
        NOT_KNOWN if one.free is None else format_share(one.free, 1.0),
    )


def _show_job(one: LiveJob) -> LustreJob:
    name, _, cluster = one.job.rpartition("@") if "@" in one.job else (one.job, "", "")
    return LustreJob(
        one,
        "" if not name else job_link(cluster, name) if cluster else any_job_link(name),
        (draw_meter(one.share), _show_share(one.share)),
        _show_latency(one.latency, one.read_bytes + one.write_bytes),
        read_moment(one.since) or None,
        _show_factor(one.factor, "new"),
    )


def _show_share(share: float) -> str:
    return "< 0.1 %" if 0 < share < 1e-3 else format_share(share, 1.0)


def _show_latency(microseconds: float | None, rate: float) -> str:
    if microseconds is None:
        return NOT_KNOWN if rate else "none"
    return format_quantity(microseconds / 1e6, "s")


def _show_factor(ratio: float | None, missing: str) -> ShownFactor:
    """Return a factor, marked if it is far from 1. missing: the word for none.

    Only a rise is a hint: between its bursts each target is idle.
    """
    word = missing if ratio is None else f"{format_number(ratio, 2)} times"
    if missing == "new" if ratio is None else ratio >= _FAR:
        return ShownFactor("hint", STATES["hint"][0], word)
    return ShownFactor("", "", word if ratio is None or ratio > 1 / _FAR else f"▼ {word}")
