"""Text of floating-point numbers: exact, without rounding errors of arithmetic."""

from __future__ import annotations

import math

MOST_DIGITS = 17
"""A float with a shorter text than this has at most 15 digits."""

_WHOLE = 1e15
"""Floats from this value on can be whole numbers of more than 15 digits."""
_REMAINDER = 8
_repr = float.__repr__
"""`float.__repr__`, because the text of a subclass such as numpy's is not a plain number."""


def format_float(value: float) -> str:
    """Return the text of a finite float, without rounding errors of arithmetic."""
    text = _repr(value)
    return text if len(text) < MOST_DIGITS else drop_remainder(value, text)


def drop_remainder(value: float, text: str) -> str:
    """Return the text of a finite float, without rounding errors in its last digits.

    `1.0248970240000002` becomes `1.024897024`: the two differ by a few units of the last binary
    place, and its 15 digits end with two or more zeros. Any other value is written exactly.
    """
    # Few floats with so many digits need the costly part. An exponent may hide the digits.
    end = text[-4:-1]
    if end.isdecimal() and "00" not in end and "99" not in end:
        return text
    if not -_WHOLE < value < _WHOLE:
        return text
    rounded = float(f"{value:.15g}")
    shorter = _repr(rounded)
    if len(shorter) < len(text) - 2 and abs(rounded - value) <= _REMAINDER * math.ulp(value):
        return shorter
    return text
