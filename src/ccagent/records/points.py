"""A measured value as the line protocol carries it.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "metric": one field
`value`, tags `cluster`, `hostname`, `type` and what further describes the place of the value.
"""

from __future__ import annotations

import math
import re

import msgspec

from ccagent.errors import EncodingError

_INTEGERS = range(-(2**63), 2**63)
_LATEST = float(2**63 // 10**9)
_EARLIEST = -_LATEST
MOST_DIGITS = 17
"""A float written with fewer characters than these has 15 digits at most."""
_WHOLE = 1e15
"""Floats from here on can be whole numbers of more than 15 digits."""
_REMAINDER = 8
_repr = float.__repr__
"""Also for subclasses such as numpy's, which show themselves in other words."""
_SHOWN = 40
_MOST_BITS_SHOWN = 128

NAME = re.compile(r"[A-Za-z0-9_]+")
"""What a metric may be called."""

_CHECKED: set[str] = set()
_MOST_NAMES = 10_000


class Tags(dict[str, str]):
    """Tags that many points share: they are written once. Don't change them after that."""

    _text: str | None = None

    def text(self) -> str:
        """Give the tags as they stand in a line. Raises EncodingError."""
        if self._text is None:
            self._text = tags_text(self)
        return self._text


# There are thousands at a time, and never circles of them for a garbage collector to find.
class Point(msgspec.Struct, frozen=True, gc=False):
    """One metric: name, tags, value and seconds since 1970."""

    name: str
    tags: dict[str, str]
    value: int | float
    time: float


def line(point: Point) -> str:
    """Write a point as one line, tags sorted, time in seconds.

    Raises EncodingError for what the line protocol can't express: a bad name, an empty tag, a
    line break, NaN or infinity, a time beyond the year 2262.
    """
    name, tags, value = point.name, point.tags, point.value
    if name in _CHECKED and isinstance(tags, Tags):
        start = name + tags.text()
    else:
        start = measurement(name, tags)
    # A Go consumer reads any of these; repr of a float is exact and has no locale.
    if type(value) is float and math.isfinite(value):
        text = repr(value)
        if len(text) >= MOST_DIGITS and (text[-3] in "09+-" or text[-5] == "e"):
            text = without_remainder(value, text)
    else:
        text = _number(name, value)
    time = point.time
    if not _EARLIEST <= time <= _LATEST:
        seconds(time)
    return f"{start} value={text} {int(time)}"


def float_text(value: float) -> str:
    """Write a finite float with the digits that it has, without remainders of arithmetic."""
    text = _repr(value)
    return text if len(text) < MOST_DIGITS else without_remainder(value, text)


def without_remainder(value: float, text: str) -> str:
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


def seconds(time: float) -> int:
    """Return whole seconds since 1970. Raises EncodingError if they are beyond 64 bits in ns."""
    if _EARLIEST <= time <= _LATEST:
        return int(time)
    raise EncodingError(f"time {time!r} is out of range")


def _number(name: str, value: object) -> str:
    """Write a number as such, also one of a subclass that shows itself in other words."""
    if isinstance(value, float) and math.isfinite(value):
        return float_text(value)
    if isinstance(value, int) and not isinstance(value, bool) and int(value) in _INTEGERS:
        return f"{int(value)}i"
    raise EncodingError(f"metric {name}: {shortened(value)} is not a number to send")


def measurement(name: str, tags: dict[str, str]) -> str:
    """Write what a line begins with: name and tags. Raises EncodingError."""
    if NAME.fullmatch(name) is None:
        raise EncodingError(f"metric name {shortened(name)}: letters, digits and '_' only")
    if len(_CHECKED) < _MOST_NAMES:
        _CHECKED.add(name)
    return name + tags_text(tags)


def tags_text(tags: dict[str, str]) -> str:
    """Write tags as they stand in a line, sorted. Raises EncodingError."""
    return "".join(
        f",{_escaped(key, key)}={_escaped(key, value)}" for key, value in sorted(tags.items())
    )


def shortened(value: object) -> str:
    """Return a value for a sentence, of bounded length, printable."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:_SHOWN]) if isinstance(value, str) else ascii(value)[:_SHOWN]


def _escaped(key: str, text: str) -> str:
    """Escape comma, equals sign and space of a tag's key or value."""
    if not text or not text.isprintable() or text.endswith("\\"):
        raise EncodingError(
            f"tag {shortened(key)}: {shortened(text)} is empty, or has control characters or a "
            "final backslash"
        )
    return text.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")
