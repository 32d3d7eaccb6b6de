"""Text of floating-point numbers: exact, without remainders of arithmetic."""

from __future__ import annotations

import math

MOST_DIGITS = 17
"""A float written with fewer characters than these has 15 digits at most."""

_WHOLE = 1e15
"""Floats from here on can be whole numbers of more than 15 digits."""
_REMAINDER = 8
_repr = float.__repr__
"""Also for subclasses such as numpy's, whose own text is not a plain number."""


def format_float(value: float) -> str:
    """Return the text of a finite float, without remainders of arithmetic."""
    text = _repr(value)
    return text if len(text) < MOST_DIGITS else drop_remainder(value, text)


def drop_remainder(value: float, text: str) -> str:
    """Return the text of a finite float without what arithmetic has left in its last digits.

    `1.0248970240000002` becomes `1.024897024`: it is a few units of the last binary place away, and
    two or more zeros end its 15 digits. Any other value is written exactly.
    """
    # Hardly any of those with so many digits need the costly part. An exponent may hide the digits.
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
