"""Conversion of line protocol times in s, ms, us or ns."""

from __future__ import annotations

_LAST_SECOND = 10**11
_LAST_MILLISECOND = 10**14
_LAST_MICROSECOND = 10**17


def seconds(time: int) -> int:
    """Return a time in s, ms, us or ns since 1970 as whole seconds.

    The size determines the unit: 100,000,000,000 s is in the year 5138, as many ms are in 1973.
    """
    size = abs(time)
    if size < _LAST_SECOND:
        return time
    if size < _LAST_MILLISECOND:
        return time // 1000
    if size < _LAST_MICROSECOND:
        return time // 1_000_000
    return time // 1_000_000_000
