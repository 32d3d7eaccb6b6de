"""The list of jobs and its rows: filters in the query, 50 per page, with figures and verdicts."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.amounts import format_duration, format_share
from ccagent.views.job.judged_job import LEVELS
from ccagent.views.terminal import harmless
from ccagent.views.web.addresses import ShownTime, cluster_link, read_times
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.drawing import draw_meter, draw_sparkline
from ccagent.views.web.rendering import LONGEST_TEXT, STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.figures import UsedShare
    from ccagent.views.job.judged_job import JobFinding
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.jobs import JobSummary

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
    """A row of a list of jobs. cpu, memory, gpu: a bar and its text; gpu: None without GPUs."""

    job: StoredJob
    state: str
    size: str
    ran: str
    cpu: tuple[Markup, str]
    memory: tuple[Markup, str]
    gpu: tuple[Markup, str] | None
    verdict: ShownFinding
    spark: Markup


def make_row(summary: JobSummary) -> JobRow:
    """Return the row of a job."""
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
        parts.append(f"{job.details.cores} core" + ("s" if job.details.cores != 1 else ""))
    if gpus:
        parts.append(f"{gpus} GPU" + ("s" if gpus != 1 else ""))
    return ", ".join(parts) or "1 node"


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    rows: list[JobRow]
    times: ShownTime
    text: str
    state: str
    verdict: str
    states: list[str]
    count: int
    number: int
    before: str
    after: str
    limit: str
    jobs: list[dict[str, object]]
    verdicts: tuple[str, ...] = LEVELS
    plots: tuple[()] = ()

    def as_csv(self) -> bytes:
        """Return CSV with one line per job."""
        return write_csv(_FIELDS, self.jobs)

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON."""
        return {"jobs": self.jobs}


def write_csv(names: Iterable[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return CSV of rows whose values are in the order of the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(harmless(one) if isinstance(one, str) else one for one in row.values())
    return text.getvalue().encode("utf-8", "replace")


async def make_jobs_page(sources: PageSources, request: PageRequest) -> JobsPage | None:
    """Return the page. The list is empty for a cluster without jobs."""
    cluster, query = request.names["cluster"], request.query
    times = read_times(query, sources.now)
    text, state = query.get("q", "").strip()[:200], query.get("state", "").lower()[:40]
    state = state if _STATE.fullmatch(state) else ""
    verdict = query.get("verdict", "")
    verdict = verdict if verdict in LEVELS else ""
    wanted = JobFilter(cluster, times.start, times.end, text, state, request.only_user)
    number = _page_number(query.get("page", ""))
    is_page = request.points <= 240
    each, skip = (EACH, (number - 1) * EACH) if is_page else (_MOST_WRITTEN, 0)
    limit = ""
    if verdict:
        found = await sources.reports.of_many(await sources.jobs.find(wanted, _MOST_JUDGED))
        if len(found) == _MOST_JUDGED:
            limit = f"Only the latest {_MOST_JUDGED} jobs of this time; choose a shorter one."
        found = sorted(
            (one for one in found if one.report.level == verdict), key=lambda one: one.rank
        )
        count = len(found)
        found = found[skip : skip + each]
    else:
        count = await sources.jobs.count(wanted)
        jobs = await sources.jobs.find(wanted, min(each, _MOST_JUDGED), skip)
        if count > _MOST_JUDGED:
            limit = f"CSV and JSON have the latest {_MOST_JUDGED} of them."
        found = await sources.reports.of_many(jobs)
    return JobsPage(
        rows=[make_row(one) for one in found[:EACH]],
        times=times,
        text=text,
        state=state,
        verdict=verdict,
        states=[*_STATES, *([state] if state and state not in _STATES else [])],
        count=count,
        number=number,
        before=_turn(cluster, query, number - 1) if number > 1 else "",
        after=_turn(cluster, query, number + 1) if skip + EACH < count else "",
        limit=limit,
        jobs=[_describe(one) for one in found],
    )


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return 1
    return min(_LAST_PAGE, max(1, int(text)))


def _turn(cluster: str, query: Mapping[str, str], number: int) -> str:
    """Return the address of another page of the same list."""
    return f"{cluster_link(cluster)}/jobs?{urlencode({**query, 'page': str(number)})}"


_FIELDS = [
    "job", "user", "account", "name", "partition", "state", "start", "elapsed", "time_limit",
    "nodes", "cores", "gpus", "cpu_percent", "memory_percent", "gpu_percent", "time_percent",
    "verdict", "rules",
]  # fmt: skip


def _describe(summary: JobSummary) -> dict[str, object]:
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
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))
