"""Detection of clock jumps."""

from __future__ import annotations

_TOLERANCE = 30.0
_AGREEING = 3


class ClockGuard:
    """Compares the clock with a monotonic clock.

    A store that received a future time rejects later correct times. Therefore nothing is sent after
    a jump until the new time is stable.
    """

    def __init__(self) -> None:
        self._difference: float | None = None
        self._candidate = 0.0
        self._agreeing = 0

    def accepts(self, time: float, monotonic: float) -> bool:
        """Return whether `time` (seconds since 1970) may be sent."""
        difference = time - monotonic
        if self._difference is None or abs(difference - self._difference) <= _TOLERANCE:
            # Accept slow corrections of the clock.
            self._difference = difference
            self._agreeing = 0
            return True
        if self._agreeing and abs(difference - self._candidate) <= _TOLERANCE:
            self._agreeing += 1
        else:
            self._agreeing = 1
        self._candidate = difference
        if self._agreeing >= _AGREEING:
            self._difference = difference
            self._agreeing = 0
            return True
        return False
