"""The tree of clusters, nodes and components, with the series of each level."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.stores.metrics.groups import Path, StoredSeries


class StoreLevel:
    """A cluster, node or component, with its series by metric and its child levels."""

    __slots__ = ("children", "path", "series")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.children: dict[str, StoreLevel] = {}
        self.series: dict[str, StoredSeries] = {}

    def find(self, path: Sequence[str]) -> StoreLevel | None:
        """Return the level at a relative path; None if it does not exist."""
        level: StoreLevel | None = self
        for name in path:
            if level is None:
                return None
            level = level.children.get(name)
        return level

    def make(self, path: Sequence[str]) -> StoreLevel:
        """Return the level at a relative path. Create missing levels."""
        level = self
        for name in path:
            below = level.children.get(name)
            if below is None:
                below = level.children[name] = StoreLevel((*level.path, name))
            level = below
        return level

    def select(self, selector: Sequence[str | Sequence[str]]) -> Iterator[StoreLevel]:
        """Yield the levels of a selector. Each element is a name or a list of names."""
        if not selector:
            yield self
            return
        element, *rest = selector
        for name in (element,) if isinstance(element, str) else element:
            below = self.children.get(name)
            if below is not None:
                yield from below.select(rest)

    def find_series(self, metric: str) -> Iterator[StoredSeries]:
        """Yield this level's series of a metric, else the series of the nearest levels below."""
        own = self.series.get(metric)
        if own is not None:
            yield own
            return
        for below in self.children.values():
            yield from below.find_series(metric)

    def walk(self) -> Iterator[StoreLevel]:
        """Yield this level and all levels below."""
        yield self
        for below in self.children.values():
            yield from below.walk()
