"""Reports of jobs from the series in the store's memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.views.job.facts import (
    CARD_METRICS,
    JOB_METRICS,
    LARGEST_VALUE,
    NODE_METRICS,
    JobFacts,
    JobSeries,
    NodeHardware,
)
from ccagent.views.job.finding import LEVELS
from ccagent.views.job.measuring import JobMeasurement
from ccagent.views.job.report import JobReport, make_report
from ccagent.views.web.data.buckets import mean_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.job.thresholds import JobThresholds
    from ccagent.views.web.data.metric_units import ShownMetric
    from ccagent.views.web.data.newest import NewestValues

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

    report: JobReport
    spark: NDArray[np.float64]

    @property
    def rank(self) -> tuple[int, float]:
        """Return a sort key: worst level first, then most unused CPU time."""
        cpu = self.report.efficiency.cpu
        waste = 0.0 if cpu is None else cpu.total - cpu.used
        return LEVELS.index(self.report.level), -waste


class _KeptSummary(NamedTuple):
    """A cached summary, valid until a time if the job's row in the table is unchanged."""

    job: StoredJob
    until: float
    summary: JobSummary


class JobReports:
    """The reports of jobs, with a cache."""

    def __init__(
        self,
        store: MetricStore,
        metrics: dict[str, ShownMetric],
        newest: NewestValues,
        thresholds: JobThresholds | None = None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._newest = newest
        self._thresholds = thresholds
        self._kept: OrderedDict[tuple[str, str, int], _KeptSummary] = OrderedDict()

    async def of_many(self, jobs: Sequence[StoredJob]) -> list[JobSummary]:
        """Return the summaries of jobs. Yields to the event loop in between."""
        return [await self.of_job(job) for job in jobs]

    async def of_job(self, job: StoredJob) -> JobSummary:
        """Return the summary of a job. Yields to the event loop in between."""
        now = self._store.now()
        key, known = (job.cluster, job.job, job.start), job._replace(footprint=None)
        kept = self._kept.get(key)
        if kept is not None and kept.job == known and now < kept.until:
            self._kept.move_to_end(key)
            return kept.summary
        summary = await self._make(job, int(now))
        self._kept[key] = _KeptSummary(known, _good_until(job, now), summary)
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
        report = make_report(measured.finish(), self._thresholds)
        cores = [node.cores for node in report.figures.nodes if node.cores]
        spark = np.full(_SPARKS, np.nan)
        if sparks and cores:
            spark = mean_of(np.array(sparks), 0) * len(sparks) / sum(cores)
        return JobSummary(report, spark)

    def _series(self, job: StoredJob, node: StoreLevel, stop: int) -> Iterator[JobSeries]:
        own = job_level(node, job.job)
        if own is not None:
            yield from self._read(own, JOB_METRICS, node, "", (job.start, stop))
        yield from self._read(node, NODE_METRICS, node, "", (job.start, stop))
        for address in job.details.cards.get(node.path[-1], ()):
            card = node.children.get(f"accelerator{address}")
            if card is not None:
                yield from self._read(card, CARD_METRICS, node, address, (job.start, stop))

    def _read(
        self,
        level: StoreLevel,
        metrics: Iterable[str],
        node: StoreLevel,
        card: str,
        times: tuple[int, int],
    ) -> Iterator[JobSeries]:
        for metric in metrics:
            found = level.series.get(metric)
            if found is None:
                continue
            factor = self._metrics[metric].factor if metric in self._metrics else 1.0
            start, values = read_values(found, *times)
            numbers = [
                one * factor if abs(one * factor) < LARGEST_VALUE else None
                for one in values.tolist()
            ]
            yield JobSeries(metric, node.path[-1], card, start, found.group.frequency, numbers)

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


def job_level(node: StoreLevel, job: str) -> StoreLevel | None:
    """Return the level of a job on a node; None if it has none."""
    return node.children.get(f"job{job}")


def read_values(found: StoredSeries, start: int, end: int) -> tuple[int, NDArray[np.float64]]:
    """Return the time of the first value, and the values of a series in [start, end)."""
    group, column = found
    first, last = group.bounds()
    low = max(first, -((group.time(0) - start) // group.frequency))
    high = min(last, -((group.time(0) - end) // group.frequency))
    values = np.empty(max(0, high - low))
    if values.size:
        group.read(column, low, high - low, values)
    return group.time(low), values


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
