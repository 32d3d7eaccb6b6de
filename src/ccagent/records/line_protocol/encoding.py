"""Encoder of the parts of a line: name and tags, value, time. Their lines are always valid.

The text of a number is exact, without rounding errors of arithmetic.
"""

from __future__ import annotations

import math
import re

from ccagent.errors import EncodingError

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


NAME = re.compile(r"[A-Za-z0-9_]+")
"""Valid names of metrics, events and components."""

CHECKED_NAMES: set[str] = set()
"""Names already found valid, a bounded number."""

EARLIEST, LATEST = -float(2**63 // 10**9), float(2**63 // 10**9)
"""Times in seconds since 1970 whose nanoseconds fit in 64 bits."""

_INTEGERS = range(-(2**63), 2**63)
_MOST_NAMES = 10_000
_SHOWN = 40
_MOST_BITS_SHOWN = 128


class Tags(dict[str, str]):
    """Tags shared by many points, and encoded once. Don't change them after the encoding."""

    _text: str | None = None

    def text(self) -> str:
        """Return the text of the tags in a line. Raise EncodingError for an invalid tag."""
        if self._text is None:
            self._text = encode_tags(self)
        return self._text


def encode_start(name: str, tags: dict[str, str]) -> str:
    """Return the start of a line: name and tags. Raise EncodingError for invalid ones."""
    if NAME.fullmatch(name) is None:
        raise EncodingError(f"name {shorten(name)}: letters, digits and '_' only")
    if len(CHECKED_NAMES) < _MOST_NAMES:
        CHECKED_NAMES.add(name)
    return name + encode_tags(tags)


def encode_tags(tags: dict[str, str]) -> str:
    """Return the text of sorted tags in a line. Raise EncodingError for an invalid tag."""
    return "".join(
        f",{_escape(key, key)}={_escape(key, value)}" for key, value in sorted(tags.items())
    )


def encode_number(value: object) -> str:
    """Return the text of a number or of its subclass. Raise EncodingError for any other."""
    if isinstance(value, float) and math.isfinite(value):
        return format_float(value)
    if isinstance(value, int) and not isinstance(value, bool) and int(value) in _INTEGERS:
        return f"{int(value)}i"
    raise EncodingError(f"{shorten(value)} is not a number of 64 bits")


def encode_string(text: str) -> str:
    """Return a text without control characters as the value of a field."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def encode_time(time: float) -> int:
    """Return whole seconds since 1970. Raise EncodingError if they exceed 64 bits in ns."""
    if EARLIEST <= time <= LATEST:
        return int(time)
    raise EncodingError(f"time {time!r} is out of range")


def shorten(value: object) -> str:
    """Return a value for an error message, printable and of bounded length."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:_SHOWN]) if isinstance(value, str) else ascii(value)[:_SHOWN]


def _escape(key: str, text: str) -> str:
    """Escape comma, equals sign and space of a tag's key or value. Raise EncodingError."""
    if not text or not text.isprintable() or text.endswith("\\"):
        raise EncodingError(
            f"tag {shorten(key)}: {shorten(text)} is empty, or has control characters or a "
            "final backslash"
        )
    return text.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")
