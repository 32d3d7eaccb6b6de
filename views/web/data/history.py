"""Use of a cluster over time: CPUs, memory, GPUs and power over all nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.views.web.data.buckets import TimeGrid, find_frequency, mean_of, read_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.web.data.metric_units import ShownMetric
    from ccagent.views.web.data.node_series import NodeSeries, SeriesFinder

    Values = NDArray[np.float64]

_AT_ONCE = 25
_SETTLED = 180
"""Seconds after the end of a bucket in which its values usually arrive."""

_FORGOTTEN_AFTER = 600
"""Seconds after which all buckets are read again, for late values."""

_MOST_KEPT = 16
_CPU, _MEMORY, _GPU, _POWER = range(4)
_KINDS = 4


class ClusterHistory(NamedTuple):
    """Values on a grid, in base units. cpu, gpu: percent, means over nodes and cards."""

    cpu: Values
    memory: Values
    gpu: Values
    power: Values


class _Sums(NamedTuple):
    """Sums and counts of values, one row per kind, one column per bucket."""

    sums: Values
    counts: Values


class _Kept(NamedTuple):
    """Sums of a grid until a time. Later buckets may still change."""

    until: float
    grid: TimeGrid
    found: _Sums


class HistoryReader:
    """A reader of the use of clusters, with a cache of final buckets."""

    def __init__(
        self, store: MetricStore, metrics: dict[str, ShownMetric], finder: SeriesFinder
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._finder = finder
        self._kept: dict[tuple[str, int], _Kept] = {}

    async def read(self, cluster: str, grid: TimeGrid) -> ClusterHistory:
        """Return the use of a cluster. Yields to the event loop between nodes."""
        now = self._store.now()
        key = (cluster, grid.step)
        kept = self._kept.get(key)
        found = _Sums(np.zeros((_KINDS, grid.size)), np.zeros((_KINDS, grid.size)))
        known = 0
        if kept is not None and now < kept.until:
            known = _take_over(kept, grid, found, int(now) - _SETTLED)
        rest = TimeGrid(grid.start + known * grid.step, grid.step, grid.size - known)
        if rest.size:
            await self._add(cluster, rest, _Sums(found.sums[:, known:], found.counts[:, known:]))
        until = kept.until if known and kept is not None else now + _FORGOTTEN_AFTER
        self._kept.pop(key, None)
        self._kept[key] = _Kept(until, grid, found)
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        sums = np.where(found.counts > 0, found.sums, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / found.counts
        return ClusterHistory(means[_CPU], sums[_MEMORY], means[_GPU], sums[_POWER])

    async def _add(self, cluster: str, grid: TimeGrid, into: _Sums) -> None:
        level = self._store.root.children.get(cluster)
        for number, node in enumerate(list(level.children.values()) if level else ()):
            self._add_node(self._finder.of_node(node), grid, into)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def _add_node(self, node: NodeSeries, grid: TimeGrid, into: _Sums) -> None:
        """Read all series of a node, and add them to the sums of their kinds."""
        cpu = node.metrics.get("cpu_idle") or node.metrics.get("cpu_user") or []
        memory, power = node.metrics.get("mem_used", []), _power(node)
        cards = [card["acc_utilization"] for _, card in node.cards if "acc_utilization" in card]
        power += [card["acc_power"] for _, card in node.cards if "acc_power" in card]
        series = [*cpu, *memory, *cards, *power]
        if not series:
            return
        rows = read_rows(series, grid, find_frequency(series, grid))
        means = mean_of(rows.reshape(len(series), grid.size, -1), 2)
        first, second, third = len(cpu), len(cpu) + len(memory), len(cpu) + len(memory) + len(cards)
        if cpu:
            used = mean_of(means[:first], 0)[None, :]
            _add(into, _CPU, 100 - used if "cpu_idle" in node.metrics else used)
        factor = self._metrics["mem_used"].factor if "mem_used" in self._metrics else 1.0
        for kind, part in (
            (_MEMORY, means[first:second] * factor),
            (_GPU, means[second:third]),
            (_POWER, means[third:]),
        ):
            if len(part):
                _add(into, kind, part)


def _add(into: _Sums, kind: int, rows: Values) -> None:
    is_there = ~np.isnan(rows)
    into.sums[kind] += np.where(is_there, rows, 0.0).sum(axis=0)
    into.counts[kind] += is_there.sum(axis=0)


def _power(node: NodeSeries) -> list[StoredSeries]:
    """Return the series of the node's power, else of its processors and memory."""
    for name in ("node_power", "psys_power"):
        if name in node.metrics:
            return list(node.metrics[name])
    return [*node.metrics.get("cpu_power", ()), *node.metrics.get("mem_power", ())]


def _take_over(kept: _Kept, grid: TimeGrid, into: _Sums, settled: int) -> int:
    """Copy the final buckets from the cache. Return their number."""
    shift = (grid.start - kept.grid.start) // grid.step
    if shift < 0 or (grid.start - kept.grid.start) % grid.step:
        return 0
    last = min(kept.grid.size, (settled - kept.grid.start) // grid.step)
    count = min(grid.size, last - shift)
    if count <= 0:
        return 0
    into.sums[:, :count] = kept.found.sums[:, shift : shift + count]
    into.counts[:, :count] = kept.found.counts[:, shift : shift + count]
    return count
