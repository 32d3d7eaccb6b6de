"""Mounts, network traffic and measured energy of a job, from the store's memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.line_keys import JOB_ENERGY, read_part
from ccagent.views.job.facts import LARGEST_VALUE
from ccagent.views.job.measuring import usual_gap
from ccagent.views.job.parts import LATE, MOST_PARTS, JobPartSums, part_metrics
from ccagent.views.web.data.measured import job_level, read_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.job.mounts import JobMounts

_MOST_NODES = 512
_SOME = 200
"""Number of values that determine the usual time between values."""

_ENERGY = "job_energy"
EnergyPart = tuple[str, str]
"""Part and share of the energy, such as `cpu` and `active`."""


class JobEnergyUse(NamedTuple):
    """Measured energy of a job in J by part and share, and the number of nodes that sent it."""

    joules: dict[EnergyPart, float]
    nodes: int


class JobParts(NamedTuple):
    """The parts of a job. None: the store has no values."""

    mounts: JobMounts | None
    energy: JobEnergyUse | None


async def read_parts(store: MetricStore, job: StoredJob, stop: int) -> JobParts:
    """Return the parts of a job. stop: the end of its values. Yields to the event loop."""
    sums, joules = JobPartSums(), dict[EnergyPart, float]()
    nodes = parts = 0
    for name in job.nodes[:_MOST_NODES]:
        node = store.root.find((job.cluster, name))
        level = job_level(node, job.job) if node is not None else None
        if level is None:
            continue
        parts += len(level.children)
        for part, below in level.children.items() if parts <= MOST_PARTS else ():
            for metric, field in part_metrics(part).items():
                if metric in below.series:
                    amount = _sum_rates(below.series[metric], job.start, stop)
                    if amount is not None:
                        sums.add(name, part, field, amount)
        found = {
            key: amount
            for key, series in _energy_series(level)
            if (amount := _growth(series, job.start, stop)) is not None
        }
        nodes += bool(found)
        for key, amount in found.items():
            joules[key] = joules.get(key, 0.0) + amount
        await asyncio.sleep(0)
    return JobParts(sums.finish(), JobEnergyUse(joules, nodes) if joules else None)


def end_of_values(job: StoredJob, runs: list[StoredJob], now: int) -> int:
    """Return the time before which values belong to this run of a job.

    The last values arrive after the end of a run, and before the start of the next run.
    """
    if job.stop is None:
        return now + 1
    later = [run.start for run in runs if run.start > job.start]
    return min([job.stop + LATE, *later])


def _sum_rates(series: StoredSeries, start: int, stop: int) -> float | None:
    """Return the amount for a series of rates; None without values.

    Each rate counts for the usual time between two values.
    """
    values = read_values(series, start, stop)[1]
    places = np.flatnonzero((values >= 0) & (values < LARGEST_VALUE))
    if not places.size:
        return None
    gap = max(1, usual_gap(places[: _SOME + 1].tolist()))
    return float(values[places].sum()) * gap * series.group.frequency


def _energy_series(level: StoreLevel) -> Iterator[tuple[EnergyPart, StoredSeries]]:
    """Yield the energy counters of a job on a node. Part and share are tags, or in the name."""
    for name, below in level.children.items():
        tags = read_part(name, JOB_ENERGY)
        if tags is not None and _ENERGY in below.series:
            yield (tags["part"], tags.get("share", "")), below.series[_ENERGY]
    for metric, series in level.series.items():
        words = metric.removeprefix(f"{_ENERGY}_").split("_")
        if metric.startswith(f"{_ENERGY}_") and len(words) == 2:
            yield (words[0], words[1]), series


def _growth(series: StoredSeries, start: int, stop: int) -> float | None:
    """Return the delta of a job's counter over [start, stop); None without values.

    After a reset the counter counts from 0.
    """
    begin, values = read_values(series, 0, stop)
    times = begin + series.group.frequency * np.arange(len(values))
    is_good = (values >= 0) & (values < LARGEST_VALUE)
    before, during = values[is_good & (times < start)], values[is_good & (times >= start)]
    if not during.size:
        return None
    known = np.concatenate([before[-1:] if before.size else [0.0], during])
    grown = np.diff(known)
    return float(np.where(grown < 0, known[1:], grown).sum())
