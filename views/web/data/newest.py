"""Newest values of a cluster's nodes: use, size, power, cards, age."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.web.data.metric_units import ShownMetric
    from ccagent.views.web.data.node_series import NodeSeries, SeriesFinder

SILENT_AFTER = 3
"""Number of intervals without a value after which a node is silent."""

_AT_ONCE = 25
_BACK = 8
"""Rows before the newest row that are searched for late values."""


class CardNow(NamedTuple):
    """Newest values of a card. Shares are from 0 to 1, power in W. None: unknown."""

    name: str
    utilization: float | None
    memory: float | None
    power: float | None


class NodeNow(NamedTuple):
    """Newest values of a node. cpu: share from 0 to 1. Memory is in B, power in W. None: unknown.

    last: time of the newest value. step: seconds between values.
    """

    name: str
    last: int
    step: int
    cores: int
    cpu: float | None
    load: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    cards: tuple[CardNow, ...]

    def is_silent(self, now: int) -> bool:
        """Return whether the node has sent no values for three intervals."""
        return now - self.last > SILENT_AFTER * self.step + self.step // 2


class NewestValues:
    """A reader of newest values, in base units."""

    def __init__(
        self, store: MetricStore, metrics: dict[str, ShownMetric], finder: SeriesFinder
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._finder = finder

    async def of_cluster(self, cluster: str) -> list[NodeNow]:
        """Return all nodes of a cluster. Yields to the event loop in between."""
        level = self._store.root.children.get(cluster)
        found: list[NodeNow] = []
        for number, node in enumerate(list(level.children.values()) if level else ()):
            found.append(self.of_node(node))
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return sorted(found, key=lambda one: one.name)

    def of_node(self, level: StoreLevel) -> NodeNow:
        """Return the newest values of a node."""
        series = self._finder.of_node(level)
        last, step = _newest_time(series)
        oldest = last - (SILENT_AFTER + 1) * step
        used = self._sum(series, "mem_used", oldest)
        # The total is used + available, if the agent sends both.
        free = self._sum(series, "mem_available", oldest)
        cards = tuple(self._card(name, card, oldest) for name, card in series.cards)
        power = self._total_power(series, oldest)
        drawn = [card.power for card in cards if card.power is not None]
        return NodeNow(
            name=level.path[-1],
            last=last,
            step=step,
            cores=series.cores,
            cpu=self._cpu(series, oldest),
            load=self._mean(series, "cpu_load", oldest),
            memory_used=used,
            memory_total=None if used is None or free is None else used + free,
            power=(power or 0.0) + sum(drawn) if drawn else power,
            cards=cards,
        )

    def _cpu(self, series: NodeSeries, oldest: int) -> float | None:
        """Return the share of time without idle, else the share of programs and kernel."""
        idle = self._mean(series, "cpu_idle", oldest)
        if idle is not None:
            return max(0.0, 100 - idle) / 100
        parts = [self._mean(series, name, oldest) for name in ("cpu_user", "cpu_system")]
        known = [one for one in parts if one is not None]
        return sum(known) / 100 if known else None

    def _card(self, name: str, card: dict[str, StoredSeries], oldest: int) -> CardNow:
        def newest(metric: str) -> float | None:
            found = card.get(metric)
            value = newest_value(found, oldest) if found is not None else None
            return None if value is None else value * self._factor(metric)

        share = newest("acc_utilization")
        return CardNow(
            name,
            None if share is None else share / 100,
            newest("acc_mem_used"),
            newest("acc_power"),
        )

    def _total_power(self, series: NodeSeries, oldest: int) -> float | None:
        """Return the power of the node, else the sum of processors and memory, in W."""
        for metrics in (("node_power",), ("psys_power",), ("cpu_power", "mem_power")):
            parts = [self._sum(series, name, oldest) for name in metrics]
            known = [one for one in parts if one is not None]
            if known:
                return sum(known)
        return None

    def _factor(self, metric: str) -> float:
        return self._metrics[metric].factor if metric in self._metrics else 1.0

    def _values(self, series: NodeSeries, metric: str, oldest: int) -> list[float]:
        found = [newest_value(one, oldest) for one in series.metrics.get(metric, ())]
        factor = self._factor(metric)
        return [value * factor for value in found if value is not None]

    def _sum(self, series: NodeSeries, metric: str, oldest: int) -> float | None:
        values = self._values(series, metric, oldest)
        return sum(values) if values else None

    def _mean(self, series: NodeSeries, metric: str, oldest: int) -> float | None:
        values = self._values(series, metric, oldest)
        return sum(values) / len(values) if values else None


def _newest_time(series: NodeSeries) -> tuple[int, int]:
    """Return the time of a node's newest row, and its time step."""
    last, step = 0, 60
    for group in series.groups:
        if group.head is not None:
            end = group.time(group.head_first + group.head.rows - 1)
            if end > last:
                last, step = end, group.frequency
    return last, step


def newest_value(found: StoredSeries, oldest: int) -> float | None:
    """Return the newest value of a series since a time; None without values."""
    group, column = found
    block = group.head
    if block is None:
        return None
    values, rows = block.values, block.rows
    for row in range(rows - 1, max(-1, rows - 1 - _BACK), -1):
        value = float(values[row, column])
        if value == value:  # noqa: PLR0124 - NaN
            return value if group.time(block.first + row) >= oldest else None
    if rows > _BACK:
        return None
    value_of_last = np.empty(1)
    group.read(column, block.first - 1, 1, value_of_last)
    is_there = not np.isnan(value_of_last[0]) and group.time(block.first - 1) >= oldest
    return float(value_of_last[0]) if is_there else None
