"""The metrics that a store takes: how often each is measured, and how it is aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Aggregation = Literal["sum", "avg"]

WILDCARD = "*"
"""The name that stands for every metric that is not listed."""


class StoredMetric(NamedTuple):
    """How a metric is kept. frequency: seconds from one value to the next."""

    frequency: int
    aggregation: Aggregation | None


class MetricCatalogue:
    """The configured metrics by name; with `*` among them it has every name."""

    def __init__(self, metrics: Mapping[str, StoredMetric]) -> None:
        self._metrics = {name: one for name, one in metrics.items() if name != WILDCARD}
        self._other = metrics.get(WILDCARD)

    def get(self, name: str) -> StoredMetric | None:
        """Return how a metric is kept; None if the store does not take it."""
        return self._metrics.get(name, self._other)

    def is_listed(self, name: str) -> bool:
        """Return whether a metric is configured by name."""
        return name in self._metrics

    def names(self) -> Iterable[str]:
        """Return the listed names."""
        return self._metrics.keys()
