"""Telling a clock that jumps from one that goes on."""

from __future__ import annotations

_TOLERANCE = 30.0
_AGREEING = 3


class ClockGuard:
    """Compares the clock with one that never jumps.

    A store that has once got a time in the future takes no right one after it, so nothing is sent
    while the clock is elsewhere than it should be. A new time that stays is taken over.
    """

    def __init__(self) -> None:
        self._difference: float | None = None
        self._candidate = 0.0
        self._agreeing = 0

    def accepts(self, time: float, monotonic: float) -> bool:
        """Tell whether `time` (seconds since 1970) may be sent."""
        difference = time - monotonic
        if self._difference is None or abs(difference - self._difference) <= _TOLERANCE:
            # Slow corrections are followed.
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
