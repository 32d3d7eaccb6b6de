"""The list of jobs: filters in the query, 50 jobs per page, with figures and verdicts."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.amounts import format_duration, format_share
from ccagent.views.job.figures import LEVELS
from ccagent.views.web.addresses import ShownTime, cluster_link, job_link, read_times
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.drawing import draw_meter, draw_sparkline
from ccagent.views.web.plots import PagePlot, harmless
from ccagent.views.web.rendering import STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.figures import UsedShare
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.jobs import JobSummary


class ShownShare(msgspec.Struct, frozen=True):
    """A share as a bar and a text."""

    meter: Markup
    text: str


class ShownVerdict(msgspec.Struct, frozen=True):
    """A verdict: level, shape and word, with rule and text of its first finding."""

    level: str
    shape: str
    word: str
    rule: str
    text: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a list of jobs."""

    link: str
    number: str
    user: str
    account: str
    name: str
    partition: str
    state: str
    size: str
    ran: str
    cpu: ShownShare
    memory: ShownShare
    gpu: ShownShare | None
    verdict: ShownVerdict
    spark: Markup


def make_row(job: StoredJob, summary: JobSummary) -> JobRow:
    """Return the row of a job."""
    report = summary.report
    figures, shares, details = report.figures, report.efficiency, job.details
    limit = f" of {format_duration(details.time_limit)}" if details.time_limit else ""
    gpus = figures.gpu_count
    has_line = bool((~np.isnan(summary.spark)).any())
    level = report.level
    return JobRow(
        link=job_link(job.cluster, job.job),
        number=shown_text(job.job),
        user=shown_text(job.user) or "unknown",
        account=shown_text(details.account),
        name=shown_text(details.name),
        partition=shown_text(details.partition),
        state=shown_text(figures.state) or "unknown",
        size=describe_size(job, gpus),
        ran=format_duration(figures.elapsed) + limit,
        cpu=show_share(shares.cpu, "bad" if level == "BAD" and _is_about(summary, "cpu") else "ok"),
        memory=show_share(shares.memory, "ok"),
        gpu=show_share(shares.gpu, "bad" if _is_about(summary, "gpu") else "ok") if gpus else None,
        verdict=show_verdict(summary),
        spark=draw_sparkline(summary.spark, 100.0, "CPU use over time") if has_line else Markup(),
    )


def show_share(share: UsedShare | None, state: str) -> ShownShare:
    """Return a share of a report as bar and text; also for an unknown share."""
    if share is None:
        return ShownShare(draw_meter(None), "unknown")
    return ShownShare(
        draw_meter(share.used / share.total, state=state), format_share(share.used, share.total)
    )


def show_verdict(summary: JobSummary) -> ShownVerdict:
    """Return the verdict on a job."""
    report = summary.report
    shape, word = STATES[report.level]
    first = report.findings[0] if report.findings else None
    return ShownVerdict(
        report.level,
        shape,
        word,
        first.rule if first else "",
        shown_text(first.text) if first else "",
    )


def describe_size(job: StoredJob, gpus: int | None) -> str:
    """Return a text with nodes, cores and GPUs of a job."""
    parts = [f"{len(job.nodes)} nodes"] if len(job.nodes) != 1 else []
    if job.details.cores:
        parts.append(f"{job.details.cores} core" + ("s" if job.details.cores != 1 else ""))
    if gpus:
        parts.append(f"{gpus} GPU" + ("s" if gpus != 1 else ""))
    return ", ".join(parts) or "1 node"


def _is_about(summary: JobSummary, subject: str) -> bool:
    return any(
        one.level == "BAD"
        and (one.rule.startswith(subject) or (subject == "cpu" and one.rule == "serial"))
        for one in summary.report.findings
    )


EACH = 50
_STATE = re.compile(r"[a-z_]+")
_MOST_JUDGED = 2000
_MOST_WRITTEN = 5000
_LAST_PAGE = 2000
_STATES = (
    "running", "completed", "failed", "timeout", "out_of_memory", "cancelled", "node_fail",
    "preempted",
)  # fmt: skip


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    rows: list[JobRow]
    times: ShownTime
    text: str
    state: str
    verdict: str
    states: list[str]
    verdicts: list[str]
    count: int
    number: int
    before: str
    after: str
    limit: str
    plots: list[PagePlot]
    jobs: list[dict[str, object]]

    def as_csv(self) -> bytes:
        """Return CSV with one line per job."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        names = list(self.jobs[0]) if self.jobs else _FIELDS
        writer.writerow(names)
        for job in self.jobs:
            values = [harmless(one) if isinstance(one, str) else one for one in job.values()]
            writer.writerow(values)
        return text.getvalue().encode("utf-8", "replace")


async def make_jobs_page(sources: PageSources, request: PageRequest) -> JobsPage | None:
    """Return the page. The list is empty for a cluster without jobs."""
    cluster, query = request.names["cluster"], request.query
    times = read_times(query, sources.now)
    text, state = query.get("q", "").strip()[:200], query.get("state", "").lower()[:40]
    state = state if _STATE.fullmatch(state) else ""
    verdict = query.get("verdict", "")
    verdict = verdict if verdict in LEVELS else ""
    user = None if request.viewer.is_staff else request.viewer.name
    wanted = JobFilter(cluster, times.start, times.end, text, state, user)
    number = _page_number(query.get("page", ""))
    each = EACH if request.points <= 240 else _MOST_WRITTEN
    skip = (number - 1) * EACH if request.points <= 240 else 0
    limit = ""
    if verdict:
        found = await sources.jobs.find(wanted, _MOST_JUDGED)
        summaries = await sources.reports.of_many(found)
        pairs = [
            one for one in zip(found, summaries, strict=True) if one[1].report.level == verdict
        ]
        pairs.sort(key=lambda one: one[1].rank)
        count = len(pairs)
        if len(found) == _MOST_JUDGED:
            limit = f"Only the latest {_MOST_JUDGED} jobs of this time; choose a shorter one."
        pairs = pairs[skip : skip + each]
    else:
        count = await sources.jobs.count(wanted)
        found = await sources.jobs.find(wanted, min(each, _MOST_JUDGED), skip)
        if count > _MOST_JUDGED:
            limit = f"CSV and JSON have the latest {_MOST_JUDGED} of them."
        pairs = list(zip(found, await sources.reports.of_many(found), strict=True))
    return JobsPage(
        rows=[make_row(*one) for one in pairs[:EACH]],
        times=times,
        text=text,
        state=state,
        verdict=verdict,
        states=[*_STATES, *([state] if state and state not in _STATES else [])],
        verdicts=list(LEVELS),
        count=count,
        number=number,
        before=_turn(cluster, query, number - 1) if number > 1 else "",
        after=_turn(cluster, query, number + 1) if skip + EACH < count else "",
        limit=limit,
        plots=[],
        jobs=[_described(*one) for one in pairs],
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


def _described(job: StoredJob, summary: JobSummary) -> dict[str, object]:
    """Return a job as an object for CSV and JSON. Unknown values are None."""
    report, details = summary.report, job.details
    shares = report.efficiency

    def percent(name: str) -> float | None:
        share = getattr(shares, name)
        return None if share is None else round(share.percent, 2)

    values = (
        job.job, job.user, details.account, details.name, details.partition, report.figures.state,
        job.start, round(report.figures.elapsed), details.time_limit, len(job.nodes), details.cores,
        report.figures.gpu_count, percent("cpu"), percent("memory"), percent("gpu"),
        percent("time"), report.level, " ".join(one.rule for one in report.findings),
    )  # fmt: skip
    return dict(zip(_FIELDS, values, strict=True))
