"""Comparison of floats that were written without remainders of arithmetic."""

from __future__ import annotations

import math


def is_written_as(read: object, value: object) -> bool:
    """Return whether a value was read as it was, or without the remainder of its digits."""
    if read == value or not isinstance(read, float) or not isinstance(value, float):
        return read == value
    is_near = abs(read - value) <= 8 * math.ulp(value)
    return is_near and len(repr(read)) < len(repr(value)) - 2
