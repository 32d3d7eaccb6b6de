"""Values of a cluster's nodes: newest values, and their use over time."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.views.amounts import mean_of_known
from ccagent.views.web.data.buckets import TimeGrid, find_frequency, mean_of, read_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from ccagent.agents.metrics.presets import Preset
    from ccagent.stores.metrics.groups import SeriesGroup, StoredSeries, StoreLevel
    from ccagent.stores.metrics.store import MetricStore

    Values = NDArray[np.float64]


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

    first, last: times of the oldest and the newest value; 0: none. step: seconds between values.
    coverage: such as `3 of 4 parts`, by field, if some parts of the node have no newest value.
    """

    name: str
    first: int
    last: int
    step: int
    cores: int
    cpu: float | None
    load: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    cards: tuple[CardNow, ...]
    coverage: Mapping[str, str]

    @property
    def gpu(self) -> float | None:
        """Return the mean utilization of the cards that report it."""
        return mean_of_known(card.utilization for card in self.cards)

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
        first, last, step = _value_times(series)
        oldest = last - (SILENT_AFTER + 1) * step

        present: Counter[str] = Counter()
        stored: Counter[str] = Counter()

        def newest(found: Collection[StoredSeries], metric: str, field: str) -> list[float]:
            factor = self._metrics.get(metric, UNKNOWN).factor
            values = (newest_value(one, oldest) for one in found)
            known = [value * factor for value in values if value is not None]
            present[field] += len(known)
            stored[field] += len(found)
            return known

        def total(metric: str, field: str) -> float | None:
            values = newest(series.metrics.get(metric, ()), metric, field)
            return sum(values) if values else None

        def mean(metric: str, field: str) -> float | None:
            return mean_of_known(newest(series.metrics.get(metric, ()), metric, field))

        def of_card(card: dict[str, StoredSeries], metric: str, field: str) -> float | None:
            values = newest([card[metric]], metric, field) if metric in card else []
            return values[0] if values else None

        cards = tuple(
            CardNow(
                name,
                None if (share := of_card(card, "acc_utilization", "gpu")) is None else share / 100,
                of_card(card, "acc_mem_used", "gpu-memory"),
                of_card(card, "acc_power", "power"),
            )
            for name, card in series.cards
        )
        # The share of time without idle, else the share of programs and kernel.
        idle = mean("cpu_idle", "cpu")
        cpu = None if idle is None else max(0.0, 100 - idle) / 100
        if cpu is None:
            shares = mean("cpu_user", "cpu"), mean("cpu_system", "cpu")
            busy = [one for one in shares if one is not None]
            cpu = sum(busy) / 100 if busy else None
        # The total is used + available, if the agent sends both.
        used, free = total("mem_used", "memory"), total("mem_available", "memory")
        # The power of the node, else the sum of processors and memory; and of the cards.
        power: list[float] = []
        for names in (("node_power",), ("psys_power",), ("cpu_power", "mem_power")):
            power = power or [one for name in names if (one := total(name, "power")) is not None]
        power += [card.power for card in cards if card.power is not None]
        load = mean("cpu_load", "load")
        return NodeNow(
            name=level.path[-1],
            first=first,
            last=last,
            step=step,
            cores=series.cores,
            cpu=cpu,
            load=load,
            memory_used=used,
            memory_total=None if used is None or free is None else used + free,
            power=sum(power) if power else None,
            cards=cards,
            coverage={
                field: f"{present[field]} of {count} parts"
                for field, count in stored.items()
                if 0 < present[field] < count
            },
        )


def _value_times(series: NodeSeries) -> tuple[int, int, int]:
    """Return the times of a node's oldest and newest row, and its time step."""
    first, last, step = 0, 0, 60
    for group in series.groups:
        if group.blocks:
            begin = group.time(min(group.blocks))
            first = min(first or begin, begin)
        if group.head is not None:
            end = group.time(group.head_first + group.head.rows - 1)
            if end > last:
                last, step = end, group.frequency
    return first, last, step


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


OF_NODE = frozenset({
    "cpu_idle", "cpu_user", "cpu_system", "cpu_load", "mem_used", "mem_available", "node_power",
    "psys_power", "cpu_power", "mem_power",
})  # fmt: skip
OF_CARD = frozenset({"acc_utilization", "acc_mem_used", "acc_power"})
_SECONDS = 60
_MOST_NODES = 50_000


class NodeSeries(NamedTuple):
    """Series of a node and of its cards.

    metrics: series of the node by metric, else of its parts. groups: all groups with these series.
    cores: number of hardware threads.
    """

    metrics: dict[str, list[StoredSeries]]
    cards: list[tuple[str, dict[str, StoredSeries]]]
    groups: list[SeriesGroup]
    cores: int


class SeriesFinder:
    """A search for the series of nodes, with a cache of a minute."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._generation = store.generation
        self._known: dict[tuple[str, ...], tuple[float, StoreLevel, NodeSeries]] = {}

    def of_node(self, level: StoreLevel) -> NodeSeries:
        """Return the series of a node. New series may be missing for a minute."""
        if self._generation != self._store.generation or len(self._known) > _MOST_NODES:
            self._known.clear()  # series were removed
            self._generation = self._store.generation
        now = self._store.now()
        found = self._known.get(level.path)
        if found is not None and now < found[0] and found[1] is level:
            return found[2]
        made = _find(level)
        self._known[level.path] = (now + _SECONDS, level, made)
        return made


def _find(level: StoreLevel) -> NodeSeries:
    metrics = {name: [one] for name, one in level.series.items() if name in OF_NODE}
    below: dict[str, list[StoredSeries]] = {}
    cards: list[tuple[str, dict[str, StoredSeries]]] = []
    cores = 0
    for name, part in level.children.items():
        if name.startswith("job"):
            continue
        cores += name.startswith("hwthread")
        if name.startswith("accelerator"):
            chosen = {metric: one for metric, one in part.series.items() if metric in OF_CARD}
            cards.append((name.removeprefix("accelerator"), chosen))
            continue
        for metric, one in part.series.items():
            if metric in OF_NODE and metric not in metrics:
                below.setdefault(metric, []).append(one)
    metrics |= below
    series = [one for each in metrics.values() for one in each]
    series += [one for _, card in cards for one in card.values()]
    series += [one for _, one in zip(range(1), level.series.values(), strict=False)]
    groups = {id(one.group): one.group for one in series}
    return NodeSeries(metrics, sorted(cards, key=lambda one: one[0]), list(groups.values()), cores)


class ShownMetric(NamedTuple):
    """Base unit of a metric. factor: from the store's values to the base unit.

    reader: name of the reader that sends it, "" for metrics of others.
    """

    unit: str
    factor: float
    reader: str = ""
    description: str = ""


UNKNOWN = ShownMetric("", 1.0)


@cache
def shown_metrics(preset: Preset) -> dict[str, ShownMetric]:
    """Return ccagent's metrics by their names in a store, in the order of their readers."""
    from ccagent.agents.metrics.presets import apply_preset
    from ccagent.agents.metrics.settings import READERS

    found: dict[str, ShownMetric] = {}
    for reader in READERS.values():
        for name, metric in reader.metrics.items():
            try:
                output = apply_preset(preset, name, metric.unit)
            except ValueError:
                continue
            # Pages show base units with suitable prefixes.
            unit = metric.unit if output.factor else output.unit
            factor = 1.0 / output.factor if output.factor else 1.0
            found[output.name] = ShownMetric(unit, factor, reader.name, metric.description)
    return found


_SETTLED = 180
"""Seconds after the end of a bucket in which its values usually arrive."""

_FORGOTTEN_AFTER = 600
"""Seconds after which all buckets are read again, for late values."""

_MOST_KEPT = 16
_CPU, _MEMORY, _GPU, _POWER = range(4)
_KINDS = 4


class ClusterHistory(NamedTuple):
    """Values on a grid, in base units. cpu, gpu: percent, means over nodes and cards.

    coverage: such as `3 of 4` by field, if some series have no values at the worst time.
    """

    cpu: Values
    memory: Values
    gpu: Values
    power: Values
    coverage: Mapping[str, str]


class _KeptHistory(NamedTuple):
    """The sums of a grid until a time. Later buckets may still change.

    sums: array of sums and counts (2), by kind and bucket. series: number of series by kind.
    """

    until: float
    grid: TimeGrid
    sums: Values
    series: Values


class HistoryReader:
    """A reader of the use of clusters, with a cache of final buckets."""

    def __init__(
        self, store: MetricStore, metrics: dict[str, ShownMetric], finder: SeriesFinder
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._finder = finder
        self._kept: dict[tuple[str, int], _KeptHistory] = {}

    async def read(self, cluster: str, grid: TimeGrid) -> ClusterHistory:
        """Return the use of a cluster. Yields to the event loop between nodes."""
        now = self._store.now()
        key = cluster, grid.step
        kept = self._kept.get(key)
        found, series = np.zeros((2, _KINDS, grid.size)), np.zeros(_KINDS)
        known, until = 0, now + _FORGOTTEN_AFTER
        if kept is not None and now < kept.until:
            known = _take_over(kept, grid, found, int(now) - _SETTLED)
            until = kept.until if known else until
        rest = TimeGrid(grid.start + known * grid.step, grid.step, grid.size - known)
        level = self._store.root.children.get(cluster)
        nodes = list(level.children.values()) if level is not None and rest.size else []
        if kept is not None and not nodes:
            series = kept.series
        for number, node in enumerate(nodes):
            series += self._add_node(self._finder.of_node(node), rest, found[:, :, known:])
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        self._kept.pop(key, None)
        self._kept[key] = _KeptHistory(until, grid, found, series)
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        sums, counts = np.where(found[1] > 0, found[0], np.nan), found[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        settled = counts[:, : max(0, (int(now) - _SETTLED - grid.start) // grid.step)]
        coverage = _describe_coverage(settled, series)
        return ClusterHistory(means[_CPU], sums[_MEMORY], means[_GPU], sums[_POWER], coverage)

    def _add_node(self, node: NodeSeries, grid: TimeGrid, into: Values) -> Values:
        """Read all series of a node, and add them to the sums of their kinds.

        Return the number of series by kind; the processors of a node are one.
        """
        cpu = node.metrics.get("cpu_idle") or node.metrics.get("cpu_user") or []
        memory = node.metrics.get("mem_used", [])
        cards = [card["acc_utilization"] for _, card in node.cards if "acc_utilization" in card]
        power = next((node.metrics[one] for one in ("node_power", "psys_power")
                      if one in node.metrics), None)  # fmt: skip
        if power is None:  # of its processors and memory
            power = [*node.metrics.get("cpu_power", ()), *node.metrics.get("mem_power", ())]
        power = [*power, *(card["acc_power"] for _, card in node.cards if "acc_power" in card)]
        series = [*cpu, *memory, *cards, *power]
        counts = np.array([len(cpu) > 0, len(memory), len(cards), len(power)], np.float64)
        if not series:
            return counts
        rows = read_rows(series, grid, find_frequency(series, grid))
        means = mean_of(rows.reshape(len(series), grid.size, -1), 2)
        first, second = len(cpu), len(cpu) + len(memory)
        third = second + len(cards)
        used = mean_of(means[:first], 0)[None, :] if cpu else means[:0]
        for kind, part in (
            (_CPU, 100 - used if "cpu_idle" in node.metrics else used),
            (_MEMORY, means[first:second] * self._metrics.get("mem_used", UNKNOWN).factor),
            (_GPU, means[second:third]),
            (_POWER, means[third:]),
        ):
            if len(part):
                is_there = ~np.isnan(part)
                into[0, kind] += np.where(is_there, part, 0.0).sum(axis=0)
                into[1, kind] += is_there.sum(axis=0)
        return counts


def _describe_coverage(counts: Values, series: Values) -> dict[str, str]:
    """Return the fewest series with values at a time, of all series, by field.

    counts: by kind and bucket. Buckets without any value are gaps of the plot.
    """
    found: dict[str, str] = {}
    for field, of_kind, total in zip(ClusterHistory._fields, counts, series, strict=False):
        fewest = of_kind[of_kind > 0].min(initial=total)
        if fewest < total:
            found[field] = f"{int(fewest)} of {int(total)}"
    return found


def _take_over(kept: _KeptHistory, grid: TimeGrid, into: Values, settled: int) -> int:
    """Copy the final buckets from the cache. Return their number."""
    shift, left = divmod(grid.start - kept.grid.start, grid.step)
    last = min(kept.grid.size, (settled - kept.grid.start) // grid.step)
    count = min(grid.size, last - shift)
    if shift < 0 or left or count <= 0:
        return 0
    into[:, :, :count] = kept.sums[:, :, shift : shift + count]
    return count
