"""Energy of a job on its nodes, from the counters of the agent `energy` in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.line_keys import JOB_ENERGY, read_part
from ccagent.stores.metrics.reading import read_values
from ccagent.stores.metrics.usage.factors import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.store import MetricStore

    Values = NDArray[np.float64]

_ENERGY = "job_energy"
_SHARES = ("active", "idle")
_LATE = 600
"""Seconds after a job's end in which its last values usually arrive."""

_LARGEST = 1e18
_LONGEST = 366 * 86400
"""Maximum seconds of a job. Times since 1970 would take too long, and too much memory."""

_MOST_NODES = 10_000

EnergyPart = tuple[str, str]
"""Part and share of the energy, such as `cpu` and `active`."""


class NodeJobEnergy(NamedTuple):
    """Energy of a job on a node in J, by part and by hour (seconds since 1970 / 3600).

    below, above: from the energy to the ends of its interval; None: no interval was sent.
    """

    parts: dict[EnergyPart, float]
    hours: dict[int, float]
    below: float | None = None
    above: float | None = None

    @property
    def joules(self) -> float:
        """Return the energy of all parts."""
        return sum(self.parts.values())


def read_job_use(store: MetricStore, job: StoredJob, stop: int) -> dict[str, NodeJobEnergy]:
    """Return the energy of a job by node. stop: the end of its values."""
    found: dict[str, NodeJobEnergy] = {}
    for name in job.nodes[:_MOST_NODES]:
        level = store.root.find((job.cluster, name, f"job{job.job}"))
        use = read_node_use(level, job.start, stop) if level is not None else None
        if use is not None:
            found[name] = use
    return found


def read_coverage(store: MetricStore, job: StoredJob, stop: int) -> float | None:
    """Return the share of a job's time with a known energy, as its nodes sent at its end.

    It is the mean over the nodes; None if one has not sent it.
    """
    found: list[float] = []
    for name in job.nodes[:_MOST_NODES]:
        level = store.root.find((job.cluster, name, f"job{job.job}"))
        series = level.series.get(f"{_ENERGY}_coverage") if level is not None else None
        value = _last_value(series, job.start, stop) if series is not None else None
        if value is None:
            return None
        found.append(value)
    return sum(found) / len(found) if found else None


def end_of_values(job: StoredJob, runs: list[StoredJob], now: int) -> int:
    """Return the time before which values belong to this run of a job.

    The last values arrive after the end of a run, and before the start of the next run.
    """
    if job.stop is None:
        return now + 1
    later = [run.start for run in runs if run.start > job.start]
    return min([job.stop + _LATE, *later])


def job_level(node: StoreLevel, job: str) -> StoreLevel | None:
    """Return the level of a job on a node; None if it has none."""
    return node.children.get(f"job{job}")


def read_node_use(level: StoreLevel, start: int, stop: int) -> NodeJobEnergy | None:
    """Return the energy of a job on a node over [start, stop); None without values."""
    parts: dict[EnergyPart, float] = {}
    hours: dict[int, float] = {}
    counted = 0.0
    for key, series in _energy_series(level):
        times, known = _counter(series, start, stop)
        if times.size:
            grown = np.diff(known)
            grown = np.where(grown < 0, known[1:], grown)
            parts[key] = parts.get(key, 0.0) + float(grown.sum())
            counted += float(known[-1])
            _add_hours(hours, times, grown, start)
    if not parts:
        return None
    ends = [
        _last_value(level.series[name], start, stop)
        for name in (f"{_ENERGY}_least", f"{_ENERGY}_most")
        if name in level.series
    ]
    if len(ends) < 2 or ends[0] is None or ends[1] is None:
        return NodeJobEnergy(parts, hours)
    # Both ends are of the whole counter, which may have started before the job's run.
    return NodeJobEnergy(parts, hours, max(0.0, counted - ends[0]), max(0.0, ends[1] - counted))


def _energy_series(level: StoreLevel) -> Iterator[tuple[EnergyPart, StoredSeries]]:
    """Yield the energy counters of a job on a node. Part and share are tags, or in the name."""
    for name, below in level.children.items():
        tags = read_part(name, JOB_ENERGY)
        if tags is not None and _ENERGY in below.series:
            yield (tags["part"], tags.get("share", "")), below.series[_ENERGY]
    for metric, series in level.series.items():
        words = metric.removeprefix(f"{_ENERGY}_").split("_")
        # Other series have such names, too: job_energy_least, job_energy_idle_known.
        if metric.startswith(f"{_ENERGY}_") and len(words) == 2 and words[1] in _SHARES:
            yield (words[0], words[1]), series


def _counter(series: StoredSeries, start: int, stop: int) -> tuple[Values, Values]:
    """Return the times and values of a counter over [start, stop), after the value at `start`.

    After a reset the counter counts from 0.
    """
    begin, values = read_values(series, max(0, stop - 2 * _LONGEST), stop)
    times = begin + series.group.frequency * np.arange(float(len(values)))
    is_good = (values >= 0) & (values < _LARGEST)
    before, during = values[is_good & (times < start)], is_good & (times >= start)
    known = np.concatenate([before[-1:] if before.size else [0.0], values[during]])
    return times[during], known


def _add_hours(hours: dict[int, float], times: Values, grown: Values, start: int) -> None:
    """Add deltas to their hours. The first one is spread evenly over the time since the start."""
    first = int(times[0])
    start = max(start, first - _LONGEST)
    for hour in range(start // HOUR, first // HOUR + 1):
        part = min(first, (hour + 1) * HOUR) - max(start, hour * HOUR)
        share = part / (first - start) if first > start else 1.0
        hours[hour] = hours.get(hour, 0.0) + float(grown[0]) * share
    places, inverse = np.unique(times[1:] // HOUR, return_inverse=True)
    sums = np.bincount(inverse, grown[1:], len(places))
    for hour, amount in zip(places.tolist(), sums.tolist(), strict=True):
        hours[int(hour)] = hours.get(int(hour), 0.0) + amount


def _last_value(series: StoredSeries, start: int, stop: int) -> float | None:
    values = read_values(series, start, stop)[1]
    known = values[~np.isnan(values)]
    return float(known[-1]) if known.size else None
