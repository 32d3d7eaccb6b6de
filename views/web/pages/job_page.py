"""The pages of a job and of compared jobs.

A job has its report, meters, verdict, plots on one time axis, and nodes. Compared jobs have their
figures side by side, and plots over the time since their start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from ccagent.stores.metrics.reading import read_values
from ccagent.stores.metrics.usage.job_energy import end_of_values, job_level
from ccagent.views.amounts import (
    format_age,
    format_duration,
    format_number,
    format_quantity,
    format_share,
)
from ccagent.views.job.formats import describe_usage, format_report
from ccagent.views.job.mounts import JobMounts
from ccagent.views.terminal import Style
from ccagent.views.web.addresses import AHEAD, ShownTime, jobs_link, read_times
from ccagent.views.web.context import NotAllowedError, PageRequest, PageSources
from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid, make_grid, mean_of, read_means
from ccagent.views.web.data.jobs import read_parts
from ccagent.views.web.drawing import PlotLine
from ccagent.views.web.pages.cluster_page import ShownTile
from ccagent.views.web.pages.job_plots import JobPlots, Roofline, describe_energy, make_roofline
from ccagent.views.web.pages.jobs_page import (
    JobRow,
    ShownFinding,
    describe_size,
    make_row,
    show_finding,
    show_share,
)
from ccagent.views.web.pages.lustre_page import JobIo, find_job_io
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.rendering import shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.figures import NodeFigures, UsedShare
    from ccagent.views.job.judged_job import Resource
    from ccagent.views.job.rules import JobReport

_MOST_NODES = 256
_MOST_RUNS = 20
_MOST_NOTES = 8
_MOST_METRICS = 300
_FIRST = 4
"""Number of plots in the first row."""

CpuUse = tuple[float | None, float | None, float | None]
"""Minimum, mean and maximum of the cores in use."""

_MOST_COMPARED = 5
_LONGEST_NUMBER = 40
_COMPARED_STEP = 60


class JobPage(NamedTuple):
    """The content of the page.

    runs: the latest runs, if there are several. first: number of plots in the first row.
    nodes_of_job: number of its nodes; nodes: the first ones. footprint: name, minimum, mean and
    maximum of each metric. is_whole: the page shows the job's whole time. choices: key and title of
    the plots that a viewer may choose; chosen: keys of those in the address. links: of facts.
    """

    number: str
    name: str
    start: int
    facts: list[tuple[str, str | int]]
    links: dict[str, str]
    runs: list[StoredJob]
    verdict: ShownFinding
    findings: list[ShownFinding]
    hidden: list[str]
    meters: list[ShownTile]
    notes: list[str]
    plots: list[PagePlot]
    first: int
    roofline: Roofline | None
    choices: list[tuple[str, str]]
    chosen: list[str]
    nodes: list[tuple[NodeFigures, CpuUse]]
    nodes_of_job: int
    imbalance: str
    mounts: JobMounts
    lustre: JobIo | None
    footprint: list[list[str]]
    text: str
    times: ShownTime
    is_running: bool
    is_whole: bool


async def make_job_page(sources: PageSources, request: PageRequest) -> JobPage | None:
    """Return the page; None for an unknown job.

    Raise NotAllowedError if the viewer may not see the job.
    """
    runs = await sources.jobs.runs(request.names["cluster"], request.names["job"])
    wanted = request.names.get("start", "")
    chosen = [run for run in runs if not wanted or str(run.start) == wanted]
    if not chosen:
        return None
    job = chosen[-1]
    if not request.viewer.may_see(job.user):
        raise NotAllowedError(
            "You are not allowed to see this job: it is another user's. Ask its owner or the staff."
        )
    report, now = (await sources.reports.of_job(job)).report, sources.now
    stop = now if job.stop is None else job.stop
    parts = await read_parts(sources.store, job, end_of_values(job, runs, now))
    if parts.joules:
        energy = describe_energy(parts, len(job.nodes))
    else:
        energy = _estimate_energy(sources, job, stop)
    usage = _describe_usage(sources, job, end_of_values(job, runs, now))
    is_whole = not any(request.query.get(name) for name in ("range", "from", "to"))
    times = _whole_time(job, now, sources.oldest)
    if not is_whole:
        times = read_times(request.query, now, oldest=sources.oldest)
    is_old = job.stop is not None and job.stop < now - sources.retention
    builder = JobPlots(sources, job)
    plots = builder.make(report, times.start, times.end, request.points)
    choices = builder.choices(plots)
    chosen_plots = [one for one in request.listed if one in dict(choices)]
    if chosen_plots:
        plots = builder.make(report, times.start, times.end, request.points, chosen_plots)
    return JobPage(
        number=shown_text(job.job),
        name=shown_text(job.details.name),
        start=job.start,
        facts=_facts(job, report, energy, usage),
        links={
            name: jobs_link(job.cluster, **{name: value, "range": "7d"})
            for name, value in (
                ("user", job.user),
                ("account", job.details.account),
                ("partition", job.details.partition),
            )
            if value
        },
        runs=runs[-_MOST_RUNS:] if len(runs) > 1 else [],
        verdict=show_finding(report.findings[0]),
        findings=[show_finding(one, len(one.text)) for one in report.findings],
        hidden=sorted(one.rule for one in report.hidden),
        meters=_meters(report),
        notes=_notes(sources, job, report, is_old=is_old, now=now),
        plots=[] if is_old else plots,
        first=len(plots) if chosen_plots else _FIRST if report.figures.gpu_count else 2,
        roofline=None if is_old else make_roofline(sources, builder.nodes, times.start, times.end),
        choices=choices,
        chosen=chosen_plots,
        nodes=[
            (node, _cpu_use(sources, job, node.name, stop))
            for node in report.figures.nodes[:_MOST_NODES]
        ],
        nodes_of_job=len(job.nodes),
        imbalance=_imbalance(report),
        mounts=parts.mounts or JobMounts(),
        lustre=await find_job_io(sources, job, request.viewer),
        footprint=_footprint(sources, job) if is_old or job.footprint else [],
        text=format_report(report, Style(), 80, parts.mounts),
        times=times,
        is_running=job.stop is None,
        is_whole=is_whole,
    )


def _whole_time(job: StoredJob, now: int, oldest: int) -> ShownTime:
    """Return the job's time. Clocks of other machines may be wrong."""
    stop = now if job.stop is None else min(max(job.stop, 0), now + AHEAD)
    start = min(max(job.start, oldest), stop)
    return ShownTime(start, max(stop, start + 60), "")


def _facts(
    job: StoredJob, report: JobReport, energy: str, usage: str
) -> list[tuple[str, str | int]]:
    """Return names and values. Numbers are times in seconds since 1970."""
    details, figures = job.details, report.figures
    ran = format_duration(figures.elapsed)
    if details.time_limit:
        share = format_share(figures.elapsed, details.time_limit)
        ran += f" of {format_duration(details.time_limit)} ({share})"
    samples = f"{figures.samples}"
    if figures.coverage is not None:
        samples += f", {format_number(min(100.0, figures.coverage))} % of the expected"
    state = shown_text(figures.state) or "unknown"
    if details.exit_code:
        state += f", exit code {details.exit_code}"
    facts: dict[str, str | int | None] = {
        "user": shown_text(job.user) or "unknown",
        "account": shown_text(details.account),
        "partition": shown_text(details.partition),
        "state": state,
        "size": describe_size(job, figures.gpu_count),
        "start": job.start,
        "end": job.stop,
        "ran": ran,
        "samples": samples,
        "energy": energy,
        "interval, CO₂ and cost" if "CO2" in usage else "interval": usage,
    }
    return [(name, one) for name, one in facts.items() if one is not None and one != ""]


def _describe_usage(sources: PageSources, job: StoredJob, stop: int) -> str:
    """Return interval, CO2 and cost of the measured energy; empty without it."""
    if sources.usage is None:
        return ""
    found = sources.usage.of_job(sources.store, job, stop)
    return "" if found is None else describe_usage(found, sources.usage.settings.currency)


def _estimate_energy(sources: PageSources, job: StoredJob, stop: int) -> str:
    """Return an estimated energy: processors by the share of cores, and the job's cards."""
    joules, is_known = 0.0, False
    for name in job.nodes[:_MOST_NODES]:
        node = sources.find_node(job.cluster, name)
        if node is None:
            continue
        total = sum(1 for one in node.children if one.startswith("hwthread"))
        cores = job.details.cpus.get(name) or (job.details.cores or 0) / max(1, len(job.nodes))
        share = 1.0 if job.details.is_exclusive else (cores / total if total else 0.0)
        series = [(one, share) for metric in ("cpu_power", "mem_power")
                  for one in node.find_series(metric)]  # fmt: skip
        for address in job.details.cards.get(name, ()):
            card = node.children.get(f"accelerator{address}")
            if card is not None and "acc_power" in card.series:
                series.append((card.series["acc_power"], 1.0))
        for one, part in series:
            watts = read_values(one, job.start, stop)[1]
            if watts.size and not np.isnan(watts).all():
                joules += float(np.nanmean(watts)) * (stop - job.start) * part
                is_known = is_known or part > 0
    if not is_known:
        return ""
    return f"about {format_quantity(joules / 3600, 'Wh')}, by its share of cores and its GPUs"


def _meters(report: JobReport) -> list[ShownTile]:
    shares, figures = report.efficiency, report.figures
    levels = {one.resource: one.level for one in report.findings}

    def meter(label: str, share: UsedShare | None, detail: str, resource: Resource) -> ShownTile:
        level = levels.get(resource)
        state = "bad" if level == "BAD" else "hint" if level == "hint" else "ok"
        bar, text = show_share(share, state)
        return ShownTile(label, text, detail, bar)

    cores = f"of {format_number(shares.cpu.total / 3600)} core hours" if shares.cpu else ""
    if figures.gpu_count:
        several = shares.gpu is not None and shares.gpu.nodes > 1
        cards = f"mean of {shares.gpu.nodes} GPUs" if shares.gpu and several else "of the GPU"
        gpu = meter("GPU", shares.gpu, cards, "gpus")
    elif figures.has_gpu_share:
        gpu = ShownTile("GPU", "unknown", "a part of one", Markup())
    else:
        gpu = ShownTile("GPU", "none", "no GPU was asked for", Markup())
    limit = f"of {format_duration(figures.time_limit)}" if figures.time_limit else "no limit known"
    return [
        meter("CPU", shares.cpu, cores, "cores"),
        meter("Memory", shares.memory, _describe_memory(report), "memory"),
        gpu,
        meter("Time", shares.time, limit, "time"),
    ]


def _describe_memory(report: JobReport) -> str:
    share, charged = report.efficiency.memory, report.efficiency.charged
    if share is None:
        return "" if charged is None else f"{format_quantity(charged.used, 'B')} with page cache"
    text = f"{format_quantity(share.used, 'B')} of {format_quantity(share.total, 'B')} at most"
    if charged is not None and charged.used > share.used:
        text += f"; {format_quantity(charged.used - share.used, 'B')} page cache"
    return text


def _notes(
    sources: PageSources, job: StoredJob, report: JobReport, *, is_old: bool, now: int
) -> list[str]:
    """Return notes on missing values and their reasons."""
    nodes = report.figures.nodes
    if is_old:
        days = format_age(sources.retention)
        return [f"Ended; values are kept for {days}. Only the summary below remains."]
    notes: list[str] = []
    told = sum(1 for node in nodes if node.samples)
    if job.stop is None and report.figures.samples < 2:
        notes.append("Waiting for the second sample.")
    elif told < len(nodes):
        notes.append(f"{told} of {len(nodes)} nodes have sent values for this job.")
    for name in job.nodes[:_MOST_NODES] if job.stop is None else ():
        node = sources.find_node(job.cluster, name)
        if node is None:
            continue
        seen = sources.newest.of_node(node)
        if seen.is_silent(now):
            notes.append(f"Node {shown_text(name)}: no values for {format_age(now - seen.last)}.")
        elif job_level(node, job.job) is None:
            notes.append(f"Node {shown_text(name)} sends no values for this job.")
    return notes[:_MOST_NOTES]


def _cpu_use(sources: PageSources, job: StoredJob, node: str, stop: int) -> CpuUse:
    """Return the cores in use on a node."""
    series = sources.store.find((job.cluster, node, f"job{job.job}"), "job_cpu_util")
    values = read_values(series, job.start, stop)[1] if series else np.empty(0)
    if not values.size or np.isnan(values).all():
        return None, None, None
    low, mean, high = (float(one(values)) / 100 for one in (np.nanmin, np.nanmean, np.nanmax))
    return low, mean, high


def _imbalance(report: JobReport) -> str:
    """Return a sentence on the imbalance between nodes."""
    used = [node.cpu_seconds for node in report.figures.nodes if node.cpu_seconds is not None]
    if len(used) < 2 or not max(used):
        return ""
    low, high, mean = min(used), max(used), sum(used) / len(used)
    hours = [format_quantity(one / 3600, "h") for one in (low, mean, high)]
    return (
        f"CPU time of a node: least {hours[0]}, mean {hours[1]}, most {hours[2]};"
        f" the idlest node did {format_share(low, high)} of the busiest one's work."
    )


def _footprint(sources: PageSources, job: StoredJob) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, one in sorted((job.footprint or {}).items())[:_MOST_METRICS]:
        metric = sources.metric(name)
        texts = [
            format_quantity(float(one[key]) * metric.factor, metric.unit)
            if key in one
            else "unknown"
            for key in ("min", "avg", "max")
        ]
        rows.append([shown_text(name), *texts])
    return rows


class ComparedMetric(NamedTuple):
    """A plot of several jobs. is_sum: over nodes and cards, else the mean. unit: "" as stored."""

    key: str
    title: str
    metric: str
    is_sum: bool = True
    unit: str | None = None
    factor: float = 1.0
    of_cards: bool = False


_COMPARED = (
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
    """The content of the comparison.

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
    """Return the comparison. Jobs of other users are missing from it, as unknown jobs are."""
    cluster = request.names["cluster"]
    asked = [one.strip()[:_LONGEST_NUMBER] for one in request.query.get("jobs", "").split(",")]
    wanted = list(dict.fromkeys(one for one in asked if one))
    jobs: list[StoredJob] = []
    missing: list[str] = []
    for number in wanted[:_MOST_COMPARED]:
        runs = await sources.jobs.runs(cluster, number)
        if runs and request.viewer.may_see(runs[-1].user):
            jobs.append(runs[-1])
        else:
            missing.append(number)
    chosen = [one.key for one in _COMPARED if one.key in request.listed]
    plots = [
        _compare(sources, jobs, one, request.points)
        for one in _COMPARED
        if jobs and (not chosen or one.key in chosen)
    ]
    return ComparePage(
        rows=[make_row(one) for one in await sources.reports.of_many(jobs)],
        missing=missing,
        wanted=wanted[:_MOST_COMPARED],
        has_more=len(wanted) > _MOST_COMPARED,
        plots=[one for one in plots if chosen or not one.is_empty],
        choices=[(one.key, one.title) for one in _COMPARED],
        chosen=chosen,
    )


def _compare(
    sources: PageSources, jobs: Sequence[StoredJob], wanted: ComparedMetric, points: int
) -> PagePlot:
    """Return a plot with a line per job."""
    found = [_find_series(sources, job, wanted) for job in jobs]
    steps = [one.group.frequency for series in found for one in series]
    longest = max((sources.now if job.stop is None else job.stop) - job.start for job in jobs)
    grid = make_grid(0, max(longest, _COMPARED_STEP), min(steps, default=_COMPARED_STEP), points)
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


def _find_series(
    sources: PageSources, job: StoredJob, wanted: ComparedMetric
) -> list[StoredSeries]:
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
