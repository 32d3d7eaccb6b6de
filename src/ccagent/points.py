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
    line break, NaN or infinity.
    """
    name, tags, value = point.name, point.tags, point.value
    if name in _CHECKED and isinstance(tags, Tags):
        start = name + tags.text()
    else:
        start = measurement(name, tags)
    # A Go consumer reads any of these; repr of a float is exact and has no locale.
    is_plain = type(value) is float and math.isfinite(value)
    text = repr(value) if is_plain else _number(name, value)
    return f"{start} value={text} {int(point.time)}"


def _number(name: str, value: object) -> str:
    """Write a number as such, also one of a subclass that shows itself in other words."""
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    if isinstance(value, int) and not isinstance(value, bool) and int(value) in _INTEGERS:
        return f"{int(value)}i"
    raise EncodingError(f"metric {name}: {value!r} is not a number to send")


def measurement(name: str, tags: dict[str, str]) -> str:
    """Write what a line begins with: name and tags. Raises EncodingError."""
    if NAME.fullmatch(name) is None:
        raise EncodingError(f"metric name {name!r}: letters, digits and '_' only")
    if len(_CHECKED) < _MOST_NAMES:
        _CHECKED.add(name)
    return name + tags_text(tags)


def tags_text(tags: dict[str, str]) -> str:
    """Write tags as they stand in a line, sorted. Raises EncodingError."""
    return "".join(f",{_escaped(key)}={_escaped(value)}" for key, value in sorted(tags.items()))


def _escaped(text: str) -> str:
    """Escape comma, equals sign and space of a tag's key or value."""
    if not text or not text.isprintable() or text.endswith("\\"):
        raise EncodingError(f"tag {text!r}: empty, with control characters or a final backslash")
    return text.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")
