"""Metrics whose stored time step differs from the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.stores.metrics.catalogue import MetricCatalogue

_MOST_NAMED = 5


class ChangedSteps:
    """Metrics whose stored values have another time step than the configuration."""

    def __init__(self, catalogue: MetricCatalogue) -> None:
        self._catalogue = catalogue
        self._stored: dict[str, int] = {}

    def configured(self, metric: str, stored: int) -> int:
        """Return the configured time step of a metric in s. Record a differing stored step."""
        known = self._catalogue.get(metric)
        if known is None or known.frequency == stored:
            return stored
        self._stored.setdefault(metric, stored)
        return known.frequency

    def describe(self) -> str:
        """Return a sentence about the changed metrics; empty without changes."""
        if not self._stored:
            return ""
        named = [
            f"{metric} (stored each {stored} s, now {self.configured(metric, stored)} s)"
            for metric, stored in sorted(self._stored.items())[:_MOST_NAMED]
        ]
        more = len(self._stored) - len(named)
        if more:
            named.append(f"{more} more")
        return (
            f"the frequency of {', '.join(named)} has changed; stored values keep their times:"
            " a longer step keeps its last value, a shorter step has gaps"
        )
