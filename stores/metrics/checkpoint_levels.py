"""Values of one node in a checkpoint: a tree of levels with series of equal steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.reading import read_series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import Path
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore


_LONGEST_STEP = 10**7
_LAST_SECOND = 10**11


class CheckpointSeries(NamedTuple):
    """Values of a metric. start: time of the first value. frequency: seconds to the next one."""

    frequency: int
    start: int
    values: NDArray[np.float64]


def make_series(frequency: int, start: int, values: NDArray[np.float64]) -> CheckpointSeries:
    """Return a series read from a file. Raise ValueError for an implausible step or time."""
    if not (0 < frequency <= _LONGEST_STEP and abs(start) < _LAST_SECOND):
        raise ValueError(f"implausible series from {start} in steps of {frequency} s")
    return CheckpointSeries(frequency, start, np.where(np.isfinite(values), values, np.nan))


class CheckpointLevel:
    """A level of a node, and its children."""

    def __init__(self) -> None:
        self.series: dict[str, CheckpointSeries] = {}
        self.children: dict[str, CheckpointLevel] = {}

    def is_empty(self) -> bool:
        """Return whether the level and its children have no values."""
        return not self.series and all(child.is_empty() for child in self.children.values())

    def count(self) -> int:
        """Return the number of values."""
        own = sum(len(one.values) for one in self.series.values())
        return own + sum(child.count() for child in self.children.values())

    def end(self) -> int:
        """Return the time after the last value; 0 without values."""
        own = [
            one.start + (len(one.values) - 1) * one.frequency + 1 for one in self.series.values()
        ]
        return max([0, *own, *(child.end() for child in self.children.values())])


def collect_level(
    level: StoreLevel, start: int, end: int, metrics: Collection[str] | None = None
) -> CheckpointLevel:
    """Return the values of a level from `start` to before `end`. metrics: None for all."""
    found = CheckpointLevel()
    for _ in collect_slices(level, start, end, found, metrics):
        pass
    return found


def collect_slices(
    level: StoreLevel,
    start: int,
    end: int,
    into: CheckpointLevel,
    metrics: Collection[str] | None = None,
) -> Iterator[None]:
    """Collect the values of a level into `into`. The generator pauses after each series."""
    for metric, series in list(level.series.items()):
        if metrics is not None and metric not in metrics:
            continue
        group = series.group
        # Use the times of slots: reading the file again then keeps the phase of the series.
        first = start + (group.time(0) - start) % group.frequency
        values = read_series(series, first, end)
        if values is not None and len(values.values):
            into.series[metric] = CheckpointSeries(group.frequency, values.start, values.values)
        yield
    for name, below in list(level.children.items()):
        child = CheckpointLevel()
        yield from collect_slices(below, start, end, child, metrics)
        if child.series or child.children:
            into.children[name] = child


def restore_level(store: MetricStore, path: Path, level: CheckpointLevel) -> int:
    """Write the values of a checkpoint into a store. Return their number.

    Series with the same start become a group. Metrics that the store does not accept are skipped.
    """
    new: dict[tuple[int, int], list[tuple[Path, str]]] = {}
    found = list(_walk(path, level))
    for below, metric, one in found:
        known = store.catalogue.get(metric)
        if known is not None and store.find(below, metric) is None:
            step = store.changed_steps.configured(metric, one.frequency)
            new.setdefault((one.start, step), []).append((below, metric))
    for (start, frequency), wanted in new.items():
        store.add(wanted, start, frequency)
    count = 0
    for below, metric, one in found:
        series = store.find(below, metric)
        if series is not None:
            count += _write(store, series.group.number, series.column, one)
    return count


def _walk(path: Path, level: CheckpointLevel) -> list[tuple[Path, str, CheckpointSeries]]:
    found = [(path, metric, one) for metric, one in level.series.items()]
    for name, below in level.children.items():
        found += _walk((*path, name), below)
    return found


def _write(store: MetricStore, number: int, column: int, one: CheckpointSeries) -> int:
    group = store.groups[number]
    present = np.flatnonzero(~np.isnan(one.values))
    times = one.start + present * one.frequency
    slots = (times - group.start) // group.frequency
    group.write_column(store.pool, column, slots, one.values[present])
    return len(present)
