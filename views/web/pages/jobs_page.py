"""The list of jobs and its rows: filters in the query, 50 per page, with figures and verdicts."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.stores.metrics.usage.table import JOULES_PER_KWH
from ccagent.views.amounts import format_duration, format_number, format_share, plural
from ccagent.views.job.judged_job import LEVELS, JobFinding
from ccagent.views.terminal import write_csv
from ccagent.views.web.addresses import ShownTime, cluster_link, read_times
from ccagent.views.web.data.job_search import ORDERS, JobFilter
from ccagent.views.web.drawing import draw_meter, draw_sparkline
from ccagent.views.web.pages.filters import (
    RANGES,
    Histogram,
    SortedColumn,
    find_order,
    make_histogram,
    sort_by_figure,
    sort_columns,
)
from ccagent.views.web.rendering import LONGEST_TEXT, STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.figures import UsedShare
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.jobs import JobSummary
    from ccagent.views.web.pages.filters import NumberRange

EACH = 50
_STATE = re.compile(r"[a-z_]+")
_MOST_JUDGED = 2000
_MOST_WRITTEN = 5000
_LAST_PAGE = 2000
_STATES = (
    "running", "completed", "failed", "timeout", "out_of_memory", "cancelled", "node_fail",
    "preempted",
)  # fmt: skip


class ShownFinding(NamedTuple):
    """A finding: level, shape and word, rule and text."""

    level: str
    shape: str
    word: str
    rule: str
    text: str


class JobRow(NamedTuple):
    """A row of a list of jobs. cpu, memory, gpu: a bar and its text; gpu: None without GPUs.

    energy: measured, in kWh; "" if unknown.
    """

    job: StoredJob
    state: str
    size: str
    ran: str
    cpu: tuple[Markup, str]
    memory: tuple[Markup, str]
    gpu: tuple[Markup, str] | None
    verdict: ShownFinding
    spark: Markup
    energy: str = ""


def make_row(summary: JobSummary, joules: float | None = None) -> JobRow:
    """Return the row of a job. joules: its measured energy."""
    job, report, spark = summary
    shares, gpus, limit = report.efficiency, report.figures.gpu_count, job.details.time_limit
    bad = {one.resource for one in report.findings if one.level == "BAD"}
    has_line = bool((~np.isnan(spark)).any())
    return JobRow(
        job=job,
        state=report.figures.state,
        size=describe_size(job, gpus),
        ran=format_duration(report.figures.elapsed)
        + (f" of {format_duration(limit)}" if limit else ""),
        cpu=show_share(shares.cpu, "bad" if "cores" in bad else "ok"),
        memory=show_share(shares.memory, "ok"),
        gpu=show_share(shares.gpu, "bad" if "gpus" in bad else "ok") if gpus else None,
        verdict=show_finding(report.findings[0]),
        spark=draw_sparkline(spark, 100.0, "CPU use over time") if has_line else Markup(),
        energy="" if joules is None else f"{format_number(joules / JOULES_PER_KWH)} kWh",
    )


def show_share(share: UsedShare | None, state: str) -> tuple[Markup, str]:
    """Return a share of a report as bar and text; also for an unknown share."""
    if share is None:
        return draw_meter(None), "unknown"
    return draw_meter(share.used / share.total, state=state), format_share(share.used, share.total)


def show_finding(finding: JobFinding, longest: int = LONGEST_TEXT) -> ShownFinding:
    """Return a finding with names made safe. The first finding of a report is its verdict."""
    text = shown_text(finding.text, longest)
    return ShownFinding(finding.level, *STATES[finding.level], finding.rule, text)


def describe_size(job: StoredJob, gpus: int | None) -> str:
    """Return a text with nodes, cores and GPUs of a job."""
    parts = [f"{len(job.nodes)} nodes"] if len(job.nodes) != 1 else []
    if job.details.cores:
        parts.append(plural(job.details.cores, "core"))
    if gpus:
        parts.append(plural(gpus, "GPU"))
    return ", ".join(parts) or "1 node"


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page.

    chosen: filters in the address, without time, order and page. ranges: parameter, title, example
    and text of each filter by range. names: filters by a name, without their links back.
    """

    rows: list[JobRow]
    times: ShownTime
    chosen: dict[str, str]
    ranges: list[tuple[str, str, str, str]]
    names: list[tuple[str, str]]
    states: list[str]
    columns: list[SortedColumn]
    order: str
    count: int
    number: int
    before: str
    after: str
    limit: str
    jobs: list[dict[str, object]]
    histograms: list[Histogram]
    histogram_link: str
    has_energy: bool
    verdicts: tuple[str, ...] = LEVELS
    plots: tuple[()] = ()

    def as_csv(self) -> str:
        """Return CSV with one line per job."""
        return write_csv(_FIELDS, (one.values() for one in self.jobs))

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON."""
        return {"jobs": self.jobs}


_COLUMNS: tuple[tuple[str, str], ...] = (
    ("verdict", "verdict"), ("-job", "job"), ("user", "user"), ("state", "state"),
    ("-start", "start"), ("-size", "size"), ("-ran", "ran of limit"), ("-cpu", "CPU"),
    ("-memory", "memory"), ("-gpu", "GPU"),
)  # fmt: skip
_ENERGY = ("-energy", "energy")
_NAMES = ("user", "account", "partition", "node", "rule")
_CHOSEN = ("q", "state", "verdict", *_NAMES, *RANGES)


class _JobList(NamedTuple):
    """The request of a list: its filter in SQL, ranges of figures of reports, verdict, order.

    rule: of a finding; "": any.
    """

    wanted: JobFilter
    ranges: dict[str, NumberRange]
    verdict: str
    rule: str
    order: str

    @property
    def is_judged(self) -> bool:
        """Return whether the list depends on the reports of all of its jobs."""
        return (
            bool(self.ranges or self.verdict or self.rule)
            or self.order.removeprefix("-") not in ORDERS
        )


def _read_list(request: PageRequest, times: ShownTime, now: int) -> tuple[_JobList, dict[str, str]]:
    """Return the request of a list, and its valid filters as parameters."""
    query = request.query
    chosen = {name: query.get(name, "").strip()[:200] for name in _CHOSEN}
    state = chosen["state"].lower()[:40]
    chosen["state"] = state if _STATE.fullmatch(state) else ""
    chosen["verdict"] = chosen["verdict"] if chosen["verdict"] in LEVELS else ""
    parsed = {name: RANGES[name].parse(chosen[name]) for name in RANGES}
    ranges = {name: one for name, one in parsed.items() if one is not None}
    chosen |= {name: "" for name in RANGES if name not in ranges}
    order = find_order(query.get("sort", ""), (*_COLUMNS, _ENERGY), "")
    if not order:  # the worst first among jobs of a verdict
        order = "verdict" if chosen["verdict"] else "-start"
    wanted = JobFilter(
        request.names["cluster"], times.start, times.end, chosen["q"], chosen["state"],
        request.only_user, chosen["node"], chosen["user"], chosen["account"], chosen["partition"],
        order=order if order.removeprefix("-") in ORDERS else "-start", now=now,
    )  # fmt: skip
    if (ran := ranges.pop("ran", None)) is not None:
        wanted = wanted._replace(seconds=(max(0, ran.low), min(ran.high - 1, wanted.seconds[1])))
    if (nodes := ranges.pop("nodes", None)) is not None:
        wanted = wanted._replace(nodes=(max(0, nodes.low), min(nodes.high, wanted.nodes[1])))
    found = {name: text for name, text in chosen.items() if text}
    return _JobList(wanted, ranges, chosen["verdict"], chosen["rule"], order), found


async def make_jobs_page(sources: PageSources, request: PageRequest) -> JobsPage | None:
    """Return the page. The list is empty for a cluster without jobs."""
    query, path = request.query, f"{cluster_link(request.names['cluster'])}/jobs"
    times = read_times(query, sources.now)
    asked, chosen = _read_list(request, times, sources.now)
    number = _page_number(query.get("page", ""))
    is_page = request.points <= 240
    each, skip = (EACH, (number - 1) * EACH) if is_page else (_MOST_WRITTEN, 0)
    kept = {**chosen, **dict(times.parameters)}
    wants_histograms = query.get("show") == "histograms" and is_page
    limit = ""
    judged: list[JobSummary] = []
    joules = await _read_energy(sources, asked.wanted)
    if asked.is_judged or wants_histograms:
        judged = await sources.reports.of_many(await sources.jobs.find(asked.wanted, _MOST_JUDGED))
        if len(judged) == _MOST_JUDGED:
            limit = f"Only the latest {_MOST_JUDGED} jobs of this time; choose a shorter one."
        judged = [one for one in judged if _is_wanted(one, asked, joules)]
    if asked.is_judged:
        found, count = _sort(judged, asked.order, joules)[skip : skip + each], len(judged)
    else:
        count = await sources.jobs.count(asked.wanted)
        jobs = await sources.jobs.find(asked.wanted, min(each, _MOST_JUDGED), skip)
        if count > _MOST_JUDGED:
            limit = f"CSV and JSON have the first {_MOST_JUDGED} of them."
        found = await sources.reports.of_many(jobs)
    has_energy = any(_key(one) in joules for one in found[:EACH])
    columns = (*_COLUMNS, *((_ENERGY,) if has_energy else ()))
    state = chosen.get("state", "")
    return JobsPage(
        rows=[make_row(one, joules.get(_key(one))) for one in found[:EACH]],
        times=times,
        chosen=chosen,
        ranges=[
            (name, one.title, one.example, chosen.get(name, ""))
            for name, one in RANGES.items()
            if name != "energy" or sources.usage is not None
        ],
        names=[(name, chosen[name]) for name in _NAMES if name in chosen],
        states=[*_STATES, *([state] if state and state not in _STATES else [])],
        columns=sort_columns(columns, asked.order, path, kept),
        order=query.get("sort", "") and asked.order,
        count=count,
        number=number,
        before=_turn(path, query, number - 1) if number > 1 else "",
        after=_turn(path, query, number + 1) if skip + EACH < count else "",
        limit=limit,
        jobs=[_describe(one, joules.get(_key(one))) for one in found],
        histograms=_histograms(judged, joules, path, kept) if wants_histograms else [],
        histogram_link=f"{path}?{urlencode({**kept, 'show': 'histograms'})}",
        has_energy=has_energy,
    )


def _key(summary: JobSummary) -> tuple[str, int]:
    return summary.job.job, summary.job.start


async def _read_energy(sources: PageSources, wanted: JobFilter) -> dict[tuple[str, int], float]:
    """Return the measured energy of ended jobs in J; empty without a table of usage."""
    if sources.usage is None:
        return {}
    try:
        # Jobs that ran in the time of the list may have ended after it.
        return await asyncio.to_thread(
            sources.usage.table.joules, wanted.cluster, wanted.start, wanted.now + 1
        )
    except (sqlite3.Error, UnicodeError):  # no job has a name that is not UTF-8
        return {}


def _figure(summary: JobSummary, name: str, joules: dict[tuple[str, int], float]) -> float | None:
    """Return the figure of a filter or order; None if unknown."""
    shares = summary.report.efficiency
    if name == "energy":
        found = joules.get(_key(summary))
        return None if found is None else found / JOULES_PER_KWH
    share = {"cpu": shares.cpu, "memory": shares.memory, "gpu": shares.gpu}[name]
    return None if share is None else share.percent


def _is_wanted(summary: JobSummary, asked: _JobList, joules: dict[tuple[str, int], float]) -> bool:
    if asked.verdict and summary.report.level != asked.verdict:
        return False
    if asked.rule and all(one.rule != asked.rule for one in summary.report.findings):
        return False
    return all(
        wanted.contains(_figure(summary, name, joules)) for name, wanted in asked.ranges.items()
    )


def _sort(
    found: list[JobSummary], order: str, joules: dict[tuple[str, int], float]
) -> list[JobSummary]:
    """Return jobs in an order of figures of reports; unknown figures last."""
    name, is_down = order.removeprefix("-"), order.startswith("-")
    if name in ORDERS:
        return found
    if name == "verdict":
        return sorted(found, key=lambda one: one.rank, reverse=is_down)
    return sort_by_figure(found, lambda one: _figure(one, name, joules), is_down=is_down)


def _histograms(
    found: list[JobSummary],
    joules: dict[tuple[str, int], float],
    path: str,
    query: Mapping[str, str],
) -> list[Histogram]:
    """Return the distributions of run time, nodes and use; of figures that some job has."""
    values: dict[str, list[float | None]] = {
        "ran": [one.report.figures.elapsed for one in found],
        "nodes": [float(len(one.job.nodes)) for one in found],
    }
    for name in ("cpu", "memory", "gpu", "energy"):
        values[name] = [_figure(one, name, joules) for one in found]
    # Jobs without GPUs are no unknown figures.
    values["gpu"] = [
        value
        for value, one in zip(values["gpu"], found, strict=True)
        if one.report.figures.gpu_count
    ]
    more = {**query, "show": "histograms"}
    return [
        make_histogram(name, each, path, more)
        for name, each in values.items()
        if any(one is not None for one in each)
    ]


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return 1
    return min(_LAST_PAGE, max(1, int(text)))


def _turn(path: str, query: Mapping[str, str], number: int) -> str:
    """Return the address of another page of the same list."""
    return f"{path}?{urlencode({**query, 'page': str(number)})}"


_FIELDS = [
    "job", "user", "account", "name", "partition", "state", "start", "elapsed", "time_limit",
    "nodes", "cores", "gpus", "cpu_percent", "memory_percent", "gpu_percent", "time_percent",
    "verdict", "rules", "energy_kwh",
]  # fmt: skip


def _describe(summary: JobSummary, joules: float | None) -> dict[str, object]:
    """Return a job as an object for CSV and JSON. Unknown values are None."""
    job, report, _ = summary
    details, shares = job.details, report.efficiency
    percents = [
        None if share is None else round(share.percent, 2)
        for share in (shares.cpu, shares.memory, shares.gpu, shares.time)
    ]
    values = (
        job.job, job.user, details.account, details.name, details.partition, report.figures.state,
        job.start, round(report.figures.elapsed), details.time_limit, len(job.nodes), details.cores,
        report.figures.gpu_count, *percents, report.level,
        " ".join(one.rule for one in report.findings),
        None if joules is None else round(joules / JOULES_PER_KWH, 6),
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))
