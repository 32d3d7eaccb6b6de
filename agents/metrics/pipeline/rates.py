"""Rates of counters over the elapsed time, never negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.base import NEW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.metrics.readers.base import Count, Metric, Scope

_MOST = 200_000


class Rates:
    """Computes rates from the counters of the current and the previous reading."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, Scope], int] = {}
        self._moment: float | None = None

    def of(
        self, counts: Iterable[Count], metrics: dict[str, Metric], moment: float
    ) -> Iterable[tuple[str, float, Scope]]:
        """Return metric, rate and scope of each counter of the previous reading.

        moment: seconds of a monotonic clock. A fallen counter has wrapped, if it can wrap. A
        counter that fell by half or more was reset: its delta is its value, as for a NEW counter. A
        smaller fall comes from an inaccurate sum or a removed part, and counts as 0.
        """
        before, self._before = self._before, {}
        seconds = 0.0 if self._moment is None else moment - self._moment
        self._moment = moment
        rates: list[tuple[str, float, Scope]] = []
        for metric, value, scope, wraps_at in counts:
            key = (metric, scope)
            if len(self._before) < _MOST:
                self._before[key] = value
            old = before.get(key)
            if seconds <= 0:
                continue
            if old is None:
                if wraps_at != NEW:
                    continue
                old = 0
            delta = value - old
            if delta < 0:
                was_reset = value <= old // 2
                delta = delta + wraps_at + 1 if wraps_at >= old else value if was_reset else 0
            rates.append((metric, delta * metrics[metric].scale / seconds, scope))
        return rates
