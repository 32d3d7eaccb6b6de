"""Scales of axes: round steps of values and of times."""

from __future__ import annotations

import math
import time

_TIMES = (
    10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
    1209600, 2592000,
)  # fmt: skip
_MOST_TICKS = 40
LARGEST, _SMALLEST = 1e300, 1e-300
"""Limits of values: beyond them floating point numbers have no round steps."""


def find_top(largest: float) -> float:
    """Return a round upper end for an axis from 0 that includes a value."""
    if not math.isfinite(largest) or largest < _SMALLEST:
        return 1.0
    largest = min(largest, LARGEST)
    power = 10.0 ** math.floor(math.log10(largest))
    for step in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if largest <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def value_ticks(top: float, count: int = 4) -> list[float]:
    """Return about `count` round values from 0 to `top`."""
    raw = top / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1.0, 2.0, 2.5, 5.0, 10.0) if one * power >= raw * 0.999)
    return [n * step for n in range(int(top / step + 1e-9) + 1)]


def time_ticks(start: float, end: float, count: int = 6) -> list[int]:
    """Return round times in the server's time zone between start and end."""
    span = max(1.0, end - start)
    step = next((one for one in _TIMES if span / one <= count), _TIMES[-1])
    offset = time.localtime(start).tm_gmtoff
    first = -int(-(start + offset) // step) * step - offset
    return list(range(first, int(end) + 1, step))[:_MOST_TICKS]
