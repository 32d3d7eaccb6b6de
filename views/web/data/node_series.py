"""The series of a node that pages of clusters need, with a cache of a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import SeriesGroup, StoredSeries, StoreLevel
    from ccagent.stores.metrics.store import MetricStore

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
