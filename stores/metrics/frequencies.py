"""Time steps of metrics that were stored before the configuration changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.stores.metrics.catalogue import MetricCatalogue

_MOST_NAMED = 5


class ChangedSteps:
    """Metrics whose stored values have another time step than is configured now."""

    def __init__(self, catalogue: MetricCatalogue) -> None:
        self._catalogue = catalogue
        self._stored: dict[str, int] = {}

    def configured(self, metric: str, stored: int) -> int:
        """Return the time step of a metric that was stored with another one, perhaps."""
        known = self._catalogue.get(metric)
        if known is None or known.frequency == stored:
            return stored
        self._stored.setdefault(metric, stored)
        return known.frequency

    def describe(self) -> str:
        """Return a sentence on the metrics concerned; empty if there is none."""
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
            f"the frequency of {', '.join(named)} has changed; the values before keep their times:"
            " a longer step keeps its last value, a shorter one has gaps"
        )
