"""The metrics that a store takes: how often each is measured, and how it is aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.stores.metrics.part_tags import known_part_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Aggregation = Literal["sum", "avg"]

WILDCARD = "*"
"""The name that stands for every metric that is not listed."""


class StoredMetric(NamedTuple):
    """How a metric is kept. frequency: seconds from one value to the next.

    tags: those that tell series of one level apart; None: those that ccagent's agents use.
    """

    frequency: int
    aggregation: Aggregation | None
    tags: tuple[str, ...] | None = None


class MetricCatalogue:
    """The configured metrics by name; with `*` among them it has every name."""

    def __init__(self, metrics: Mapping[str, StoredMetric]) -> None:
        self._metrics = {name: one for name, one in metrics.items() if name != WILDCARD}
        self._other = metrics.get(WILDCARD)

    def get(self, name: str) -> StoredMetric | None:
        """Return how a metric is kept; None if the store does not take it."""
        return self._metrics.get(name, self._other)

    def part_tags(self, name: str) -> tuple[str, ...]:
        """Return the tags that tell series of a metric at one level apart."""
        known = self.get(name)
        if known is None or known.tags is None:
            return known_part_tags(name)
        return known.tags

    def is_listed(self, name: str) -> bool:
        """Return whether a metric is configured by name."""
        return name in self._metrics

    def names(self) -> Iterable[str]:
        """Return the listed names."""
        return self._metrics.keys()
