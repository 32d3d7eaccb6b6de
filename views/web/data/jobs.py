"""Reports, file systems, network and energy of jobs, from the series in the store's memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.reading import read_values
from ccagent.stores.metrics.usage.job_energy import EnergyPart, job_level, read_node_use
from ccagent.views.job.figures import (
    CARD_METRICS,
    JOB_METRICS,
    LARGEST_VALUE,
    NODE_METRICS,
    JobFacts,
    JobSeries,
    NodeHardware,
)
from ccagent.views.job.judged_job import LEVELS
from ccagent.views.job.measuring import JobMeasurement, usual_gap
from ccagent.views.job.mounts import MOST_PARTS, TIMES, JobMounts, JobPartSums, part_metrics
from ccagent.views.job.rules import JobReport, make_report
from ccagent.views.web.data.buckets import mean_of
from ccagent.views.web.data.nodes import UNKNOWN, NewestValues, ShownMetric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.page_settings import JobThresholds
    from ccagent.stores.metrics.store import MetricStore


_MOST_KEPT = 5000
_SETTLED = 300
"""Seconds after a job's end in which its last values and its accounting usually arrive."""

_LATE = 7200
"""Seconds after a job's end in which values may still arrive from the agents' queues."""

_FRESH, _FRESH_LATE = 55, 600
"""Validity in seconds of reports: of running jobs, and of jobs whose values may arrive late."""

_SPARKS = 40
_MOST_NODES = 10_000
_AT_ONCE = 8
"""Number of a job's nodes between yields to the event loop."""


class JobSummary(NamedTuple):
    """The data of a job in lists. spark: CPU use over time, in percent of the job's cores."""

    job: StoredJob
    report: JobReport
    spark: NDArray[np.float64]

    @property
    def rank(self) -> tuple[int, float]:
        """Return a sort key: worst level first, then most unused CPU time."""
        cpu = self.report.efficiency.cpu
        waste = 0.0 if cpu is None else cpu.total - cpu.used
        return LEVELS.index(self.report.level), -waste


class JobReports:
    """The reports of jobs, with a cache."""

    def __init__(
        self,
        store: MetricStore,
        metrics: dict[str, ShownMetric],
        newest: NewestValues,
        thresholds: JobThresholds,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._newest = newest
        self._thresholds = thresholds
        self._kept: OrderedDict[tuple[str, str, int], tuple[float, JobSummary]] = OrderedDict()
        """Summaries and the ends of their validity, by cluster, job and start."""

    async def of_many(self, jobs: Sequence[StoredJob]) -> list[JobSummary]:
        """Return the summaries of jobs. Yields to the event loop in between."""
        return [await self.of_job(job) for job in jobs]

    async def of_job(self, job: StoredJob) -> JobSummary:
        """Return the summary of a job. Yields to the event loop in between."""
        now = self._store.now()
        key = job.cluster, job.job, job.start
        job = job._replace(footprint=None)
        until, summary = self._kept.get(key, (0.0, None))
        if summary is None or summary.job != job or now >= until:
            summary = await self._make(job, int(now))
            self._kept[key] = (_good_until(job, now), summary)
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return summary

    async def _make(self, job: StoredJob, now: int) -> JobSummary:
        stop = now if job.stop is None else job.stop
        facts = JobFacts(
            job=job.job, cluster=job.cluster, user=job.user, state=job.state, start=job.start,
            stop=job.stop, nodes=job.nodes, details=job.details,
        )  # fmt: skip
        cluster = self._store.root.children.get(job.cluster)
        measured = JobMeasurement(facts, now)
        sparks: list[NDArray[np.float64]] = []
        for number, name in enumerate(job.nodes[:_MOST_NODES]):
            node = cluster.children.get(name) if cluster is not None else None
            if node is not None:
                measured.add(name, self._series(job, node, stop), self._hardware(node))
                used = job_level(node, job.job)
                if used is not None and "job_cpu_util" in used.series:
                    sparks.append(_spark(used.series["job_cpu_util"], job.start, stop))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        figures = measured.finish()
        report = make_report(figures, self._thresholds)
        if report.wants_mounts:
            mounts = (await read_parts(self._store, job, stop + 1)).mounts
            report = make_report(figures, self._thresholds, mounts)
        cores = [node.cores for node in report.figures.nodes if node.cores]
        spark = np.full(_SPARKS, np.nan)
        if sparks and cores:
            spark = mean_of(np.array(sparks), 0) * len(sparks) / sum(cores)
        return JobSummary(job, report, spark)

    def _series(self, job: StoredJob, node: StoreLevel, stop: int) -> Iterator[JobSeries]:
        """Yield the series of a job on a node: its own, of the node, of its cards."""
        name = node.path[-1]
        levels: list[tuple[str, StoreLevel | None, Iterable[str]]] = [
            ("", job_level(node, job.job), JOB_METRICS), ("", node, NODE_METRICS),
        ]  # fmt: skip
        levels += [
            (address, node.children.get(f"accelerator{address}"), CARD_METRICS)
            for address in job.details.cards.get(name, ())
        ]
        for card, level, metrics in levels:
            for metric in metrics:
                if level is None or metric not in level.series:
                    continue
                found = level.series[metric]
                factor = self._metrics.get(metric, UNKNOWN).factor
                start, values = read_values(found, job.start, stop)
                numbers = [
                    one * factor if abs(one * factor) < LARGEST_VALUE else None
                    for one in values.tolist()
                ]
                yield JobSeries(metric, name, card, start, found.group.frequency, numbers)

    def _hardware(self, node: StoreLevel) -> NodeHardware:
        found = self._newest.of_node(node)
        return NodeHardware(
            cores=found.cores or None, memory=found.memory_total, cards=len(found.cards) or None
        )


def _good_until(job: StoredJob, now: float) -> float:
    """Return the end of the validity of a summary computed now."""
    if job.stop is None or now <= job.stop + _SETTLED:
        return now + _FRESH
    return now + _FRESH_LATE if now <= job.stop + _LATE else float("inf")


def _spark(found: StoredSeries, start: int, stop: int) -> NDArray[np.float64]:
    """Return a series downsampled to the points of a sparkline over [start, stop)."""
    begin, values = read_values(found, start, stop)
    row = np.full(_SPARKS, np.nan)
    if not values.size or stop <= start:
        return row
    times = begin + found.group.frequency * np.arange(len(values))
    places = np.clip((times - start) * _SPARKS // (stop - start), 0, _SPARKS - 1)
    is_there = ~np.isnan(values)
    sums = np.bincount(places[is_there], values[is_there], _SPARKS)
    counts = np.bincount(places[is_there], minlength=_SPARKS)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / counts)


_MOST_NODES_OF_PARTS = 512
_SOME = 200
"""Number of values that determine the usual time between values."""


class JobParts(NamedTuple):
    """The parts of a job. mounts: None: the store has no values.

    joules: measured energy in J by part and share. nodes: number of nodes that sent it.
    """

    mounts: JobMounts | None
    joules: dict[EnergyPart, float]
    nodes: int


async def read_parts(store: MetricStore, job: StoredJob, stop: int) -> JobParts:
    """Return the parts of a job. stop: the end of its values. Yields to the event loop."""
    sums = JobPartSums()
    joules: dict[EnergyPart, float] = {}
    nodes = parts = 0
    for name in job.nodes[:_MOST_NODES_OF_PARTS]:
        node = store.root.find((job.cluster, name))
        level = job_level(node, job.job) if node is not None else None
        if level is None:
            continue
        parts += len(level.children)
        for part, below in level.children.items() if parts <= MOST_PARTS else ():
            for metric in part_metrics(part):
                if metric in below.series:
                    amount = _amount_of(metric, below.series[metric], job.start, stop)
                    if amount is not None:
                        sums.add(name, part, metric, amount)
        use = read_node_use(level, job.start, stop)
        nodes += use is not None
        for key, amount in use.parts.items() if use is not None else ():
            joules[key] = joules.get(key, 0.0) + amount
        await asyncio.sleep(0)
    return JobParts(sums.finish(), joules, nodes)


def _amount_of(metric: str, series: StoredSeries, start: int, stop: int) -> float | None:
    """Return the amount for a series of rates, the mean of times of calls; None without values.

    Each rate counts for the usual time between two values.
    """
    values = read_values(series, start, stop)[1]
    places = np.flatnonzero((values >= 0) & (values < LARGEST_VALUE))
    if not places.size:
        return None
    if metric in TIMES:
        return float(values[places].mean())
    gap = max(1, usual_gap(places[: _SOME + 1].tolist()))
    return float(values[places].sum()) * gap * series.group.frequency
