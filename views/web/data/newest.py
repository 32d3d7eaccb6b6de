"""Newest values of the nodes of a cluster: use, size, power, cards, and how old they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.web.data.metric_units import ShownMetric

NodeState = Literal["busy", "idle", "silent"]

SILENT_AFTER = 3
"""Intervals without a value after which a node is silent."""

_AT_ONCE = 25
_BACK = 8
"""Rows before the newest one in which a value that came late may be."""


class CardNow(NamedTuple):
    """A card; shares from 0 to 1, power in W. None: not known."""

    name: str
    utilization: float | None
    memory: float | None
    power: float | None


class NodeNow(NamedTuple):
    """A node. cpu: share in use. Memory in B, power in W. last: time of its newest value.

    step: seconds between values. None: not known.
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
        """Return whether values are missing for three intervals."""
        return now - self.last > SILENT_AFTER * self.step + self.step // 2


class NewestValues:
    """Reads newest values in base units."""

    def __init__(self, store: MetricStore, metrics: dict[str, ShownMetric]) -> None:
        self._store = store
        self._metrics = metrics

    async def of_cluster(self, cluster: str) -> list[NodeNow]:
        """Return all nodes of a cluster; others get their turn in between."""
        level = self._store.root.children.get(cluster)
        found: list[NodeNow] = []
        for number, node in enumerate(list(level.children.values()) if level else ()):
            found.append(self.of_node(node))
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return sorted(found, key=lambda one: one.name)

    def of_node(self, level: StoreLevel) -> NodeNow:
        """Return the newest values of a node."""
        last, step = self._newest_time(level)
        oldest = last - (SILENT_AFTER + 1) * step
        # The total is known wherever the agent sends both parts.
        used = self._sum(level, "mem_used", oldest)
        free = self._sum(level, "mem_available", oldest)
        idle = self._mean(level, "cpu_idle", oldest)
        busy = None if idle is None else max(0.0, 100 - idle)
        if busy is None:
            parts = [self._mean(level, name, oldest) for name in ("cpu_user", "cpu_system")]
            known = [one for one in parts if one is not None]
            busy = sum(known) if known else None
        power = self._total_power(level, oldest)
        cards = tuple(
            self._card(name.removeprefix("accelerator"), below, oldest)
            for name, below in sorted(level.children.items())
            if name.startswith("accelerator")
        )
        drawn = [card.power for card in cards if card.power is not None]
        if drawn:
            power = (power or 0.0) + sum(drawn)
        return NodeNow(
            name=level.path[-1],
            last=last,
            step=step,
            cores=sum(1 for name in level.children if name.startswith("hwthread")),
            cpu=None if busy is None else busy / 100,
            load=self._mean(level, "cpu_load", oldest),
            memory_used=used,
            memory_total=None if used is None or free is None else used + free,
            power=power,
            cards=cards,
        )

    def _newest_time(self, level: StoreLevel) -> tuple[int, int]:
        """Return the time of the newest block's end, and the time step."""
        last, step = 0, 60
        groups = {
            id(one.group): one.group for below in level.walk() for one in below.series.values()
        }
        for group in groups.values():
            if group.head is not None:
                end = group.time(group.head_first + group.head.rows - 1)
                if end > last:
                    last, step = end, group.frequency
        return last, step

    def _card(self, name: str, level: StoreLevel, oldest: int) -> CardNow:
        share = self._sum(level, "acc_utilization", oldest)
        return CardNow(
            name,
            None if share is None else share / 100,
            self._sum(level, "acc_mem_used", oldest),
            self._sum(level, "acc_power", oldest),
        )

    def _total_power(self, level: StoreLevel, oldest: int) -> float | None:
        """Return the power of the node, else that of its processors and memory."""
        for metrics in (("node_power",), ("psys_power",), ("cpu_power", "mem_power")):
            parts = [self._sum(level, name, oldest) for name in metrics]
            known = [one for one in parts if one is not None]
            if known:
                return sum(known)
        return None

    def _values(self, level: StoreLevel, metric: str, oldest: int) -> list[float]:
        factor = self._metrics[metric].factor if metric in self._metrics else 1.0
        found = (newest_value(one, oldest) for one in level.find_series(metric))
        return [value * factor for value in found if value is not None]

    def _sum(self, level: StoreLevel, metric: str, oldest: int) -> float | None:
        values = self._values(level, metric, oldest)
        return sum(values) if values else None

    def _mean(self, level: StoreLevel, metric: str, oldest: int) -> float | None:
        values = self._values(level, metric, oldest)
        return sum(values) / len(values) if values else None


def newest_value(found: StoredSeries, oldest: int) -> float | None:
    """Return the newest value of a series since a time; None if there is none."""
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
