"""The list of jobs: filters in the query, 50 jobs per page, with figures and verdicts."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from ccagent.views.job.finding import LEVELS
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.links import cluster_link
from ccagent.views.web.pages.job_row import JobRow, make_row
from ccagent.views.web.plots import PagePlot, harmless
from ccagent.views.web.times import ShownTime, read_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.measured import JobSummary

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
