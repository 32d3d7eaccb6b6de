"""Use of a cluster over time: CPUs, memory, GPUs and power of all nodes together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.views.web.data.buckets import find_frequency, mean_of, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.web.data.buckets import TimeGrid
    from ccagent.views.web.data.metric_units import ShownMetric

    Values = NDArray[np.float64]

_AT_ONCE = 25


class ClusterHistory(NamedTuple):
    """Values on a grid, in base units. cpu, gpu: percent, means over nodes and cards.

    nodes: how many nodes had values.
    """

    cpu: Values
    memory: Values
    gpu: Values
    power: Values
    nodes: Values


class _Total:
    """A sum over parts: NaN where no part has a value."""

    def __init__(self, grid: TimeGrid) -> None:
        self.sum = np.zeros(grid.size)
        self.count = np.zeros(grid.size)

    def add(self, values: Values) -> None:
        is_there = ~np.isnan(values)
        self.sum += np.where(is_there, values, 0.0)
        self.count += is_there

    def total(self) -> Values:
        return np.where(self.count > 0, self.sum, np.nan)

    def mean(self) -> Values:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.sum / self.count


async def read_history(
    store: MetricStore, metrics: dict[str, ShownMetric], cluster: str, grid: TimeGrid
) -> ClusterHistory:
    """Return the use of a cluster; other requests get their turn in between."""
    cpu, memory, gpu, power = (_Total(grid) for _ in range(4))
    level = store.root.children.get(cluster)
    for number, node in enumerate(list(level.children.values()) if level else ()):
        idle = _means(list(node.find_series("cpu_idle")), grid)
        if idle is not None:
            cpu.add(np.clip(100 - idle, 0, 100))
        else:
            user = _means(list(node.find_series("cpu_user")), grid)
            if user is not None:
                cpu.add(user)
        for metric, total in (("mem_used", memory), ("cpu_power", power), ("mem_power", power)):
            factor = metrics[metric].factor if metric in metrics else 1.0
            for values in _each(list(node.find_series(metric)), grid):
                total.add(values * factor)
        for card in _cards(node):
            for metric, total in (("acc_utilization", gpu), ("acc_power", power)):
                series = card.series.get(metric)
                for values in _each([series] if series else [], grid):
                    total.add(values)
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    return ClusterHistory(cpu.mean(), memory.total(), gpu.mean(), power.total(), cpu.count)


def _cards(node: StoreLevel) -> Iterator[StoreLevel]:
    for name, below in node.children.items():
        if name.startswith("accelerator"):
            yield below


def _each(found: list[StoredSeries], grid: TimeGrid) -> list[Values]:
    if not found:
        return []
    rows = read_rows(found, grid, find_frequency(found, grid))
    return list(mean_of(rows.reshape(len(found), grid.size, -1), 2))


def _means(found: list[StoredSeries], grid: TimeGrid) -> Values | None:
    """Return the means over the parts of a node."""
    if not found:
        return None
    rows = read_rows(found, grid, find_frequency(found, grid))
    return mean_of(mean_of(rows.reshape(len(found), grid.size, -1), 2), 0)
