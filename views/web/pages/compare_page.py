"""The comparison of jobs: their figures side by side, and plots over the time since their start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid, make_grid, mean_of, read_means
from ccagent.views.web.drawing import PlotLine
from ccagent.views.web.pages.job_plots import JobPlots
from ccagent.views.web.pages.jobs_page import JobRow, make_row
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.rendering import shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.web.context import PageRequest, PageSources

MOST_JOBS = 5
_LONGEST = 40
_TIME_STEP = 60


class ComparedMetric(NamedTuple):
    """A plot of several jobs. is_sum: over nodes and cards, else the mean. unit: "" as stored."""

    key: str
    title: str
    metric: str
    is_sum: bool = True
    unit: str | None = None
    factor: float = 1.0
    of_cards: bool = False


_METRICS = (
    ComparedMetric("cpu", "Cores in use", "job_cpu_util", unit="", factor=0.01),
    ComparedMetric("memory", "Memory of programs", "job_mem_rss", unit="B"),
    ComparedMetric("gpu", "GPU use, mean of cards", "acc_utilization", False, "%", of_cards=True),
    ComparedMetric("gpu-memory", "GPU memory", "acc_mem_used", unit="B", of_cards=True),
    ComparedMetric("read", "Read from block devices", "job_io_read"),
    ComparedMetric("write", "Written to block devices", "job_io_write"),
    ComparedMetric("wait-cpu", "Time waiting for a CPU, mean of nodes", "job_pressure_cpu", False),
    ComparedMetric(
        "wait-memory", "Time waiting for memory, mean of nodes", "job_pressure_memory", False
    ),
    ComparedMetric("wait-io", "Time waiting for disks, mean of nodes", "job_pressure_io", False),
)


class ComparePage(NamedTuple):
    """The content of the page.

    missing: numbers of jobs that are unknown, or hidden from the viewer. wanted: all numbers in the
    address. choices, chosen: as on the page of a job.
    """

    rows: list[JobRow]
    missing: list[str]
    wanted: list[str]
    has_more: bool
    plots: list[PagePlot]
    choices: list[tuple[str, str]]
    chosen: list[str]


async def make_compare_page(sources: PageSources, request: PageRequest) -> ComparePage:
    """Return the page. Jobs of other users are missing from it, as unknown jobs are."""
    cluster = request.names["cluster"]
    asked = [one.strip()[:_LONGEST] for one in request.query.get("jobs", "").split(",")]
    wanted = list(dict.fromkeys(one for one in asked if one))
    jobs: list[StoredJob] = []
    missing: list[str] = []
    for number in wanted[:MOST_JOBS]:
        runs = await sources.jobs.runs(cluster, number)
        if runs and request.viewer.may_see(runs[-1].user):
            jobs.append(runs[-1])
        else:
            missing.append(number)
    chosen = [one.key for one in _METRICS if one.key in request.listed]
    plots = [
        _plot(sources, jobs, one, request.points)
        for one in _METRICS
        if jobs and (not chosen or one.key in chosen)
    ]
    return ComparePage(
        rows=[make_row(one) for one in await sources.reports.of_many(jobs)],
        missing=missing,
        wanted=wanted[:MOST_JOBS],
        has_more=len(wanted) > MOST_JOBS,
        plots=[one for one in plots if chosen or not one.is_empty],
        choices=[(one.key, one.title) for one in _METRICS],
        chosen=chosen,
    )


def _plot(
    sources: PageSources, jobs: Sequence[StoredJob], wanted: ComparedMetric, points: int
) -> PagePlot:
    """Return a plot with a line per job."""
    found = [_series(sources, job, wanted) for job in jobs]
    steps = [one.group.frequency for series in found for one in series]
    longest = max((sources.now if job.stop is None else job.stop) - job.start for job in jobs)
    grid = make_grid(0, max(longest, _TIME_STEP), min(steps, default=_TIME_STEP), points)
    known = sources.metric(wanted.metric)
    factor = wanted.factor * (1.0 if wanted.unit == "%" else known.factor)
    lines: list[PlotLine] = []
    for number, (job, series) in enumerate(zip(jobs, found, strict=True)):
        values = _combine(series, grid, job, sources.now, is_sum=wanted.is_sum) * factor
        name = f"{job.job} {shown_text(job.details.name)}".strip()
        lines.append(PlotLine(name, SeriesBuckets(values, values, values), number))
    return PagePlot(
        key=wanted.key, title=wanted.title, unit=known.unit if wanted.unit is None else wanted.unit,
        grid=grid, lines=tuple(lines), is_elapsed=True, reason="no values of these jobs",
        top=100.0 if wanted.unit == "%" else None,
    )  # fmt: skip


def _series(sources: PageSources, job: StoredJob, wanted: ComparedMetric) -> list[StoredSeries]:
    """Return the series of a job on all of its nodes, or of all of its cards."""
    plots = JobPlots(sources, job)
    find = plots.of_cards if wanted.of_cards else plots.of_job
    return [series for _, series in find(wanted.metric)]


def _combine(
    series: Sequence[StoredSeries], grid: TimeGrid, job: StoredJob, now: int, *, is_sum: bool
) -> NDArray[np.float64]:
    """Return the sum or mean over series from the job's start; NaN before and after the job."""
    if not series:
        return np.full(grid.size, np.nan)
    rows = read_means(series, TimeGrid(job.start, grid.step, grid.size))
    seconds = (now if job.stop is None else job.stop) - job.start
    rows[:, max(0, -(-seconds // grid.step)) :] = np.nan
    if not is_sum:
        return mean_of(rows, 0)
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0))
