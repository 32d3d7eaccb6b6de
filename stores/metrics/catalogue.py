"""The metrics that a store accepts, with time step, aggregation and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.stores.metrics.line_keys import known_part_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

Aggregation = Literal["sum", "avg"]

WILDCARD = "*"
"""The name for all metrics that are not listed."""


class StoredMetric(NamedTuple):
    """Configuration of a metric. frequency: seconds from one value to the next.

    tags: tags that distinguish series of one level; None: the tags of ccagent's agents.
    """

    frequency: int
    aggregation: Aggregation | None
    tags: tuple[str, ...] | None = None


class MetricCatalogue:
    """The configured metrics by name. With `*` the catalogue contains every name."""

    def __init__(self, metrics: Mapping[str, StoredMetric]) -> None:
        self._metrics = {name: one for name, one in metrics.items() if name != WILDCARD}
        self._other = metrics.get(WILDCARD)

    def get(self, name: str) -> StoredMetric | None:
        """Return the configuration of a metric; None if the store does not accept it."""
        return self._metrics.get(name, self._other)

    def part_tags(self, name: str) -> tuple[str, ...]:
        """Return the tags that distinguish series of a metric at one level."""
        known = self.get(name)
        if known is None or known.tags is None:
            return known_part_tags(name)
        return known.tags

    def is_listed(self, name: str) -> bool:
        """Return whether a metric is configured by name, not by `*`."""
        return name in self._metrics
