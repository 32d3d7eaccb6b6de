"""The page of a job: report, meters, verdict, plots on one time axis, nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.amounts import (
    format_age,
    format_duration,
    format_number,
    format_quantity,
    format_share,
    format_time,
)
from ccagent.views.job.formats import format_report
from ccagent.views.terminal import Style
from ccagent.views.web.addresses import AHEAD, ShownTime, job_link, node_link, read_times
from ccagent.views.web.context import NotAllowedError
from ccagent.views.web.data.jobs import end_of_values, job_level, read_parts, read_values
from ccagent.views.web.drawing import draw_meter
from ccagent.views.web.pages.job_plots import JobPlots, ShownParts, describe_energy, show_parts
from ccagent.views.web.pages.jobs_page import ShownVerdict, describe_size, show_verdict
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.rendering import STATES, shown_text

if TYPE_CHECKING:
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.figures import NodeFigures, UsedShare
    from ccagent.views.job.rules import JobReport
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.jobs import JobSummary

_MOST_NODES = 256
_NO_GPU = ("none", "no GPU was asked for")
_FIRST = 4
"""Keys of the plots in the first row."""


class JobMeter(msgspec.Struct, frozen=True):
    """One of the four meters."""

    label: str
    value: str
    detail: str
    meter: Markup


class ShownFinding(msgspec.Struct, frozen=True):
    """A finding of the report."""

    level: str
    shape: str
    word: str
    rule: str
    text: str


class JobNodeRow(msgspec.Struct, frozen=True):
    """A row of the table of nodes."""

    name: str
    link: str
    cores: str
    cpu: tuple[str, str, str]
    memory: str
    gpu: str
    read: str
    written: str
    samples: int


class JobRun(msgspec.Struct, frozen=True):
    """A run of the job."""

    link: str
    text: str
    is_this: bool


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    number: str
    name: str
    facts: list[tuple[str, str]]
    runs: list[JobRun]
    verdict: ShownVerdict
    findings: list[ShownFinding]
    hidden: list[str]
    meters: list[JobMeter]
    notes: list[str]
    plots: list[PagePlot]
    first: int
    nodes: list[JobNodeRow]
    imbalance: str
    parts: ShownParts
    footprint: list[tuple[str, str, str, str]]
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
    summary = await sources.reports.of_job(job)
    report, now = summary.report, sources.now
    stop = now if job.stop is None else job.stop
    parts = await read_parts(sources.store, job, end_of_values(job, runs, now))
    times = _times(request, job, now, sources.oldest)
    plots = JobPlots(sources, job, report).make(times.start, times.end, request.points)
    is_old = job.stop is not None and job.stop < now - sources.retention
    return JobPage(
        number=shown_text(job.job),
        name=shown_text(job.details.name),
        facts=_facts(
            job, report,
            describe_energy(parts.energy, len(job.nodes))
            if parts.energy
            else _energy(sources, job, stop),
        ),
        runs=_runs(runs, job) if len(runs) > 1 else [],
        verdict=show_verdict(summary),
        findings=_findings(summary),
        hidden=sorted(one.rule for one in report.hidden),
        meters=_meters(report),
        notes=_notes(sources, job, report, is_old=is_old, now=now),
        plots=[] if is_old else plots,
        first=_FIRST if report.figures.gpu_count else 2,
        nodes=[
            _node_row(sources, job, node, stop) for node in report.figures.nodes[:_MOST_NODES]
        ],
        imbalance=_imbalance(report),
        parts=show_parts(parts.mounts, len(job.nodes)),
        footprint=_footprint(sources, job) if is_old or job.footprint else [],
        text=format_report(report, Style(), 80, parts.mounts),
        times=times,
        is_running=job.stop is None,
        is_whole=_is_whole(request),
    )  # fmt: skip


def _times(request: PageRequest, job: StoredJob, now: int, oldest: int) -> ShownTime:
    if not _is_whole(request):
        return read_times(request.query, now, oldest=oldest)
    # Clocks of other machines may be wrong.
    stop = now if job.stop is None else min(max(job.stop, 0), now + AHEAD)
    start = min(max(job.start, oldest), stop)
    return ShownTime(start, max(stop, start + 60), "")


def _is_whole(request: PageRequest) -> bool:
    """Return whether the request has no time range: the page then shows the job's whole time."""
    return not any(request.query.get(name) for name in ("range", "from", "to"))


def _facts(job: StoredJob, report: JobReport, energy: str) -> list[tuple[str, str]]:
    details, figures = job.details, report.figures
    limit = details.time_limit
    ran = format_duration(figures.elapsed)
    if limit:
        ran += f" of {format_duration(limit)} ({format_share(figures.elapsed, limit)})"
    coverage = figures.coverage
    samples = f"{figures.samples}" + (
        "" if coverage is None else f", {format_number(min(100.0, coverage))} % of the expected"
    )
    state = shown_text(figures.state) or "unknown"
    if details.exit_code:
        state += f", exit code {details.exit_code}"
    found = [
        ("user", shown_text(job.user) or "unknown"),
        ("account", shown_text(details.account)),
        ("partition", shown_text(details.partition)),
        ("state", state),
        ("size", describe_size(job, figures.gpu_count)),
        ("start", format_time(job.start)),
        ("end", "" if job.stop is None else format_time(job.stop)),
        ("ran", ran),
        ("samples", samples),
        ("energy", energy),
    ]
    return [(name, text) for name, text in found if text]


def _energy(sources: PageSources, job: StoredJob, stop: int) -> str:
    """Return an estimated energy: processors by the share of cores, and the job's cards."""
    joules, is_known = 0.0, False
    for name in job.nodes[:_MOST_NODES]:
        node = sources.find_node(job.cluster, name)
        if node is None:
            continue
        total = sum(1 for one in node.children if one.startswith("hwthread"))
        cores = job.details.cpus.get(name) or (job.details.cores or 0) / max(1, len(job.nodes))
        share = 1.0 if job.details.is_exclusive else (cores / total if total else 0.0)
        for metric in ("cpu_power", "mem_power"):
            for series in node.find_series(metric):
                watts = read_values(series, job.start, stop)[1]
                if watts.size and not np.isnan(watts).all():
                    joules += float(np.nanmean(watts)) * (stop - job.start) * share
                    is_known = is_known or share > 0
        for address in job.details.cards.get(name, ()):
            card = node.children.get(f"accelerator{address}")
            found = card.series.get("acc_power") if card is not None else None
            watts = read_values(found, job.start, stop)[1] if found else np.empty(0)
            if watts.size and not np.isnan(watts).all():
                joules += float(np.nanmean(watts)) * (stop - job.start)
                is_known = True
    if not is_known:
        return ""
    return f"about {format_quantity(joules / 3600, 'Wh')}, by its share of cores and its GPUs"


def _runs(runs: list[StoredJob], job: StoredJob) -> list[JobRun]:
    return [
        JobRun(
            job_link(run.cluster, run.job, run.start),
            f"{format_time(run.start)}, {shown_text(run.state)}",
            run.start == job.start,
        )
        for run in runs[-20:]
    ]


def _findings(summary: JobSummary) -> list[ShownFinding]:
    return [
        ShownFinding(one.level, *STATES[one.level], one.rule, shown_finding(one.text))
        for one in summary.report.findings
    ]


def shown_finding(text: str) -> str:
    """Return the text of a finding, with names made safe."""
    return shown_text(text, len(text))


def _meters(report: JobReport) -> list[JobMeter]:
    shares, figures = report.efficiency, report.figures
    levels = {one.rule: one.level for one in report.findings}

    def state(*rules: str) -> str:
        found = {levels.get(rule) for rule in rules}
        return "bad" if "BAD" in found else "hint" if "hint" in found else "ok"

    found: list[JobMeter] = [
        _meter("CPU", shares.cpu, _of_cores(shares.cpu), state("cpu-low", "cpu-zero", "serial")),
        _meter("Memory", shares.memory, _of_memory(report), state("mem-limit", "mem-excess")),
    ]
    if figures.gpu_count:
        cards = (
            f"mean of {shares.gpu.nodes} GPUs"
            if shares.gpu and shares.gpu.nodes > 1
            else "of the GPU"
        )
        found.append(_meter("GPU", shares.gpu, cards, state("gpu-idle", "gpu-low")))
    else:
        value, detail = ("unknown", "a part of one") if figures.has_gpu_share else _NO_GPU
        found.append(JobMeter("GPU", value, detail, Markup()))
    limit = f"of {format_duration(figures.time_limit)}" if figures.time_limit else "no limit known"
    found.append(_meter("Time", shares.time, limit, state("time")))
    return found


def _meter(label: str, share: UsedShare | None, detail: str, state: str) -> JobMeter:
    if share is None:
        return JobMeter(label, "unknown", detail, draw_meter(None))
    value = format_share(share.used, share.total)
    return JobMeter(label, value, detail, draw_meter(share.used / share.total, state=state))


def _of_cores(share: UsedShare | None) -> str:
    return "" if share is None else f"of {format_number(share.total / 3600)} core hours"


def _of_memory(report: JobReport) -> str:
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
    figures = report.figures
    found: list[str] = []
    if is_old:
        days = format_age(sources.retention)
        found.append(f"Ended; values are kept for {days}. Only the summary below remains.")
        return found
    told = [node for node in figures.nodes if node.samples]
    if job.stop is None and figures.samples < 2:
        found.append("Waiting for the second sample.")
    elif len(told) < len(figures.nodes):
        found.append(f"{len(told)} of {len(figures.nodes)} nodes have sent values for this job.")
    for name in job.nodes[:_MOST_NODES] if job.stop is None else ():
        node = sources.find_node(job.cluster, name)
        if node is None:
            continue
        seen = sources.newest.of_node(node)
        if seen.is_silent(now):
            found.append(f"Node {shown_text(name)}: no values for {format_age(now - seen.last)}.")
        level = job_level(node, job.job)
        if level is None and not seen.is_silent(now):
            found.append(f"Node {shown_text(name)} sends no values for this job.")
    return found[:8]


def _node_row(sources: PageSources, job: StoredJob, node: NodeFigures, stop: int) -> JobNodeRow:
    cards = [card.utilization for card in node.cards]
    known = [one for one in cards if one is not None]
    gpu = (
        "none"
        if not cards
        else (format_quantity(sum(known) / len(known), "%") if known else "unknown")
    )
    return JobNodeRow(
        name=shown_text(node.name),
        link=node_link(job.cluster, node.name),
        cores=format_number(node.cores),
        cpu=_cores_of(sources, job, node, stop),
        memory=_memory_of(node),
        gpu=gpu,
        read=format_quantity(node.io_read, "B"),
        written=format_quantity(node.io_written, "B"),
        samples=node.samples,
    )


def _cores_of(
    sources: PageSources, job: StoredJob, node: NodeFigures, stop: int
) -> tuple[str, str, str]:
    """Return minimum, mean and maximum of the cores in use on a node."""
    place = sources.find_node(job.cluster, node.name)
    level = job_level(place, job.job) if place is not None else None
    series = level.series.get("job_cpu_util") if level is not None else None
    values = read_values(series, job.start, stop)[1] if series else np.empty(0)
    if not values.size or np.isnan(values).all():
        return "unknown", "unknown", "unknown"
    shown = (float(one(values)) / 100 for one in (np.nanmin, np.nanmean, np.nanmax))
    low, mean, high = (format_number(one) for one in shown)
    return low, mean, high


def _memory_of(node: NodeFigures) -> str:
    text = format_quantity(node.memory_peak, "B")
    return text if not node.memory_limit else f"{text} of {format_quantity(node.memory_limit, 'B')}"


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


def _footprint(sources: PageSources, job: StoredJob) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    for name, one in sorted((job.footprint or {}).items()):
        metric = sources.metric(name)
        texts = [
            format_quantity(float(one[key]) * metric.factor, metric.unit)
            if key in one
            else "unknown"
            for key in ("min", "avg", "max")
        ]
        found.append((shown_text(name), texts[0], texts[1], texts[2]))
    return found[:300]
