"""Ticks of an agent: multiples of its cadence since 1970-01-01T00:00:00Z."""

from __future__ import annotations


class Schedule:
    """The ticks of one cadence, aligned to the UTC clock.

    No tick is repeated if the clock is set back by less than a cadence. If it is set back further,
    ticks follow the new time. Missed ticks are not made up for.
    """

    def __init__(self, every: float, now: float) -> None:
        self.every = every
        self._last = now
        self.next = self._after(now)

    def is_due(self, now: float) -> bool:
        """Return whether a tick is due at `now` (seconds since 1970); if so, advance."""
        if now < self._last - self.every:
            # The clock was set back. The old next tick could be years away.
            self._last = now
            self.next = self._after(now)
            return False
        if now < self.next:
            return False
        self._last = max(self.next, now)
        self.next = self._after(self._last)
        return True

    def _after(self, moment: float) -> float:
        return (moment // self.every + 1) * self.every
