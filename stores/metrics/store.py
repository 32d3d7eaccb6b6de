"""The metrics in memory: levels, groups of series, their blocks, and changed time steps."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ccagent.stores.metrics.blocks import BlockPool
from ccagent.stores.metrics.groups import SeriesGroup, StoredSeries, StoreLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.stores.metrics.groups import Path
    from ccagent.stores.metrics.line_keys import MetricCatalogue


_MOST_NAMED = 5

SeriesRun = tuple["Path", "Sequence[str]"]
"""A path, and metrics of consecutive columns."""


class ChangedSteps:
    """Metrics whose stored values have another time step than the configuration."""

    def __init__(self, catalogue: MetricCatalogue) -> None:
        self._catalogue = catalogue
        self._stored: dict[str, int] = {}

    def configured(self, metric: str, stored: int) -> int:
        """Return the configured time step of a metric in s. Record a differing stored step."""
        known = self._catalogue.get(metric)
        if known is None or known.frequency == stored:
            return stored
        self._stored.setdefault(metric, stored)
        return known.frequency

    def describe(self) -> str:
        """Return a sentence about the changed metrics; empty without changes."""
        if not self._stored:
            return ""
        named = [
            f"{metric} (stored each {stored} s, now {self.configured(metric, stored)} s)"
            for metric, stored in sorted(self._stored.items())[:_MOST_NAMED]
        ]
        more = len(self._stored) - len(named)
        if more:
            named.append(f"{more} more")
        return (
            f"the frequency of {', '.join(named)} has changed; stored values keep their times:"
            " a longer step keeps its last value, a shorter step has gaps"
        )


class MetricStore:
    """All series. now: returns seconds since 1970."""

    def __init__(self, catalogue: MetricCatalogue, now: Callable[[], float]) -> None:
        self.catalogue = catalogue
        self.now = now
        self.changed_steps = ChangedSteps(catalogue)
        self.root = StoreLevel(())
        self.pool = BlockPool()
        self.groups: dict[int, SeriesGroup] = {}
        self.series = 0
        """Number of series."""
        self.generation = 0
        """Incremented when series are removed. Callers must then discard cached series."""
        self.is_full = False
        """True while values exceed the memory cap. New series are then refused."""
        self._last_number = 0
        self._newest: dict[tuple[Path, int], SeriesGroup] = {}
        """The newest group of each node and time step."""

    def find(self, path: Sequence[str], metric: str) -> StoredSeries | None:
        """Return a series; None if it does not exist."""
        return self.series_at(path).get(metric)

    def series_at(self, path: Sequence[str]) -> dict[str, StoredSeries]:
        """Return the series of a level by metric; none if it does not exist."""
        level = self.root.find(path)
        return level.series if level is not None else {}

    def add(self, wanted: Iterable[tuple[Path, str]], time: int, frequency: int) -> SeriesGroup:
        """Add series of one node with the same first time, as a group. None of them may exist."""
        runs = [(path, [one[1] for one in same]) for path, same in groupby(wanted, itemgetter(0))]
        return self._add_group(self._make_levels(runs), time - frequency // 2, frequency)

    def place(
        self, runs: Iterable[SeriesRun], start: int, frequency: int
    ) -> tuple[SeriesGroup, int]:
        """Add series of one node, to its newest group or as a group. start: start of slot 0.

        Return the group and the first column. The first message of a node rarely has all of its
        series. Each group costs an entry in the log at each time, and work in each message.
        """
        found = self._make_levels(runs)
        name = found[0][0].path[:2], frequency
        group = self._newest.get(name)
        if group is None or not group.can_widen(start):
            group = self._newest[name] = self._add_group(found, start, frequency)
            return group, 0
        first = group.width
        group.widen(self.pool, found)
        self._name_columns(group, first, found)
        return group, first

    def _make_levels(self, runs: Iterable[SeriesRun]) -> list[tuple[StoreLevel, Sequence[str]]]:
        return [(self.root.make(path), metrics) for path, metrics in runs]

    def _add_group(
        self, runs: list[tuple[StoreLevel, Sequence[str]]], start: int, frequency: int
    ) -> SeriesGroup:
        self._last_number += 1
        group = SeriesGroup(self._last_number, start, frequency, runs)
        self.groups[group.number] = group
        self._name_columns(group, 0, runs)
        return group

    def _name_columns(
        self, group: SeriesGroup, first: int, runs: list[tuple[StoreLevel, Sequence[str]]]
    ) -> None:
        """Make the columns of a group known at their levels, from the first one on."""
        self.series += group.width - first
        for level, metrics in runs:
            level.add(group, first, len(metrics))
            first += len(metrics)

    def write(self, path: Path, metric: str, time: int, value: float) -> None:
        """Write one value. Raise KeyError for a metric that the store does not accept."""
        series = self.find(path, metric)
        if series is None:
            known = self.catalogue.get(metric)
            if known is None:
                raise KeyError(metric)
            series = StoredSeries(self.add([(path, metric)], time, known.frequency), 0)
        series.group.write_value(self.pool, time, series.column, value)

    def release_before(self, time: int, spared: frozenset[tuple[str, str]] = frozenset()) -> int:
        """Release blocks that end before a time, except for spared nodes.

        Return the number of released buffers: 512 values of one series each.
        """
        released = 0
        for group in list(self.groups.values()):
            if spared and group.levels[0].path[:2] in spared:
                continue
            released += self._release(group, time)
        return released

    def _release(self, group: SeriesGroup, time: int) -> int:
        """Release the blocks of a group that end before a time. Return the number of buffers."""
        released = group.release_before(self.pool, time) * group.width
        if not group.blocks:
            self._remove(group)
        return released

    def free(self, selector: Sequence[str], time: int) -> int:
        """Release the buffers at and below a level that end before a time. Return their number."""
        level = self.root.find(selector)
        if level is None:
            return 0
        columns: dict[int, list[tuple[StoreLevel, str, StoredSeries]]] = {}
        for below in level.walk():
            for metric, series in below.series.items():
                columns.setdefault(series.group.number, []).append((below, metric, series))
        freed = 0
        for found in columns.values():
            group = found[0][2].group
            if len(found) == group.width:
                freed += self._release(group, time)
            else:
                freed += self._free_columns(group, found, time)
        return freed

    def _free_columns(
        self, group: SeriesGroup, found: list[tuple[StoreLevel, str, StoredSeries]], time: int
    ) -> int:
        """Set values to NaN, because other series share their blocks."""
        freed = 0
        for begin, block in group.blocks.items():
            if group.time(begin + block.rows) < time:
                block.summary = None
                for _, _, series in found:
                    block.values[: block.rows, series.column] = np.nan
                freed += len(found)
        for level, metric, series in found:
            if group.column_bounds(series.column) == (0, 0):
                del level.series[metric]
                self.series -= 1
                self.generation += 1
                self._prune(level)
        return freed

    def _remove(self, group: SeriesGroup) -> None:
        self.generation += 1
        del self.groups[group.number]
        name = group.levels[0].path[:2], group.frequency
        if self._newest.get(name) is group:
            del self._newest[name]
        for column, (level, metric) in enumerate(zip(group.levels, group.metrics, strict=True)):
            if level.series.get(metric) == StoredSeries(group, column):
                del level.series[metric]
                self.series -= 1
                self._prune(level)

    def _prune(self, level: StoreLevel) -> None:
        """Remove a level without series and children, and parents that become empty."""
        path = level.path
        while path and not level.series and not level.children:
            above = self.root.find(path[:-1])
            if above is None:
                return
            above.children.pop(path[-1], None)
            level, path = above, path[:-1]

    def buffers(self) -> int:
        """Return the number of buffers: 512 values of one series each."""
        return sum(len(group.blocks) * group.width for group in self.groups.values())
