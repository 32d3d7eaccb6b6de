"""The tree of clusters, nodes and components, and the series at each level."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.stores.metrics.groups import Path, StoredSeries


class StoreLevel:
    """A cluster, node or component: its own series by metric, and the levels below."""

    __slots__ = ("children", "path", "series")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.children: dict[str, StoreLevel] = {}
        self.series: dict[str, StoredSeries] = {}

    def find(self, path: Sequence[str]) -> StoreLevel | None:
        """Return the level at a path below this one, None if there is none."""
        level: StoreLevel | None = self
        for name in path:
            if level is None:
                return None
            level = level.children.get(name)
        return level

    def make(self, path: Sequence[str]) -> StoreLevel:
        """Return the level at a path below this one, made where it is missing."""
        level = self
        for name in path:
            below = level.children.get(name)
            if below is None:
                below = level.children[name] = StoreLevel((*level.path, name))
            level = below
        return level

    def select(self, selector: Sequence[str | Sequence[str]]) -> Iterator[StoreLevel]:
        """Yield the levels of a selector; an element is a name or a list of names."""
        if not selector:
            yield self
            return
        element, *rest = selector
        for name in (element,) if isinstance(element, str) else element:
            below = self.children.get(name)
            if below is not None:
                yield from below.select(rest)

    def find_series(self, metric: str) -> Iterator[StoredSeries]:
        """Yield this level's own series of a metric, else all of those below that are nearest."""
        own = self.series.get(metric)
        if own is not None:
            yield own
            return
        for below in self.children.values():
            yield from below.find_series(metric)

    def walk(self) -> Iterator[StoreLevel]:
        """Yield this level and all below."""
        yield self
        for below in self.children.values():
            yield from below.walk()
