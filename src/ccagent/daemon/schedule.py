"""When an agent is due: at multiples of its cadence, counted from 1970-01-01T00:00:00Z."""

from __future__ import annotations


class Schedule:
    """The ticks of one cadence, aligned to the UTC clock.

    No tick comes twice, also when the clock is set back a little; when it is set back by more
    than a cadence, the new time counts. Ticks that were slept through are not made up for.
    """

    def __init__(self, every: float, now: float) -> None:
        self.every = every
        self._last = now
        self.next = self._after(now)

    def is_due(self, now: float) -> bool:
        """Return whether a tick is due at `now`; if so, move on to the next one."""
        if now < self._last - self.every:
            # The clock was set back: waiting for the old next tick could take years.
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
