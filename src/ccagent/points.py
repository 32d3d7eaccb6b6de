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


class Point(msgspec.Struct, frozen=True):
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
    tags = point.tags
    if isinstance(tags, Tags) and point.name in _CHECKED:
        start = point.name + tags.text()
    else:
        start = measurement(point.name, tags)
    if isinstance(point.value, float):
        is_sendable = math.isfinite(point.value)
    else:
        is_sendable = not isinstance(point.value, bool) and int(point.value) in _INTEGERS
    if not is_sendable:
        raise EncodingError(f"metric {point.name}: {point.value!r} is not a number to send")
    # A Go consumer reads any of these; repr of a float is exact and has no locale.
    value = f"{point.value}i" if isinstance(point.value, int) else repr(point.value)
    return f"{start} value={value} {int(point.time)}"


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
