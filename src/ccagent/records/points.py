"""Measured values, events and log messages as lines, and the encoder of the parts of a line.

Source: ClusterCockpit's flavor of the InfluxData line protocol, categories "metric", "event" and
"log". A line has one field: `value`, `event` (a JSON string) or `log`. The measurement is the name
of the metric, the class of the event (its tag `function` is the purpose), or the id of the
component. Tags are `cluster`, `hostname`, `type`, and further ones for the scope. Lines are always
valid, and the text of a number is exact.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.records.json_encoding import encode_value
from ccagent.records.message import LineRecord

if TYPE_CHECKING:
    import msgspec

NAME = re.compile(r"[A-Za-z0-9_]+")
"""Valid names of metrics, events and components."""

_CHECKED_NAMES: set[str] = set()
"""Names already found valid, a bounded number."""

_EARLIEST, _LATEST = -float(2**63 // 10**9), float(2**63 // 10**9)
"""Times in seconds since 1970 whose nanoseconds fit in 64 bits."""

_INTEGERS = range(-(2**63), 2**63)
_MOST_NAMES = 10_000
_SHOWN = 40
_MOST_BITS_SHOWN = 128

_MOST_DIGITS = 17
"""A float with a shorter text than this has at most 15 digits."""

_WHOLE = 1e15
"""Floats from this value on can be whole numbers of more than 15 digits."""
_REMAINDER = 8
_repr = float.__repr__
"""`float.__repr__`, because the text of a subclass such as numpy's is not a plain number."""


class Tags(dict[str, str]):
    """Tags shared by many points, and encoded once. Don't change them after the encoding."""

    _text: str | None = None

    def text(self) -> str:
        """Return the text of the tags in a line. Raise EncodingError for an invalid tag."""
        if self._text is None:
            self._text = encode_tags(self)
        return self._text


# There are thousands of points at a time. They have no reference cycles.
class Point(LineRecord, frozen=True, gc=False):
    """One metric: name, tags, value and seconds since 1970."""

    name: str
    tags: dict[str, str]
    value: int | float
    time: float

    def label(self) -> str:
        """Return the metric's name."""
        return f"metric {self.name}"

    def is_part_of_node(self) -> bool:
        """Return whether the metric is that of a job or another part of a node."""
        return "stype" in self.tags and self.tags.get("type") == "node"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line: tags sorted, time in seconds.

        Raise EncodingError for a bad name, an empty tag, a line break, NaN or infinity, or a time
        after the year 2262.
        """
        name, tags, value = self.name, self.tags, self.value
        if name in _CHECKED_NAMES and isinstance(tags, Tags):
            start = name + tags.text()
        else:
            start = _encode_start(name, tags)
        # Go programs parse all these forms. The repr of a float is exact and has no locale.
        if type(value) is float and math.isfinite(value):
            text = repr(value)
            if len(text) >= _MOST_DIGITS and (text[-3] in "09+-" or text[-5] == "e"):
                text = _drop_remainder(value, text)
        else:
            text = encode_number(value)
        time = self.time
        if not _EARLIEST <= time <= _LATEST:
            _encode_time(time)
        return "metrics", f"{start} value={text} {int(time)}"


class Event(LineRecord, frozen=True):
    """One event.

    name: the measurement. subject: `job` or `slurm`, the part of the topic after
    `<cluster>.events`. tags: `hostname`, `type` and more. payload: an object, encoded as JSON.
    time: seconds since 1970.
    """

    name: str
    subject: str
    tags: dict[str, str]
    payload: msgspec.Struct
    time: float

    def label(self) -> str:
        """Return the event's name."""
        return f"event {self.name}"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line. Raise EncodingError for an invalid value."""
        body, lost = encode_value(self.payload, has_null=True)
        if lost:
            raise EncodingError(lost[0])
        start = _encode_start(self.name, self.tags)
        # JSON already has `\n` in place of a line break.
        line = f"{start} event={encode_string(body.decode())} {_encode_time(self.time)}"
        return f"events.{self.subject}", line


class LogMessage(LineRecord, frozen=True):
    """One log message.

    component: such as `ccnc`; the topic of the message is `<cluster>.log.<component>`.
    tags: `cluster`, `hostname`, `type`, `loglevel`. time: seconds since 1970.
    """

    component: str
    tags: dict[str, str]
    text: str
    time: float

    def label(self) -> str:
        """Return the component's name."""
        return f"log message of {self.component}"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line. Raise EncodingError for an invalid value."""
        text = "".join(character if character.isprintable() else " " for character in self.text)
        start = _encode_start(self.component, self.tags)
        line = f"{start} log={encode_string(text)} {_encode_time(self.time)}"
        return f"log.{self.component}", line


def _encode_start(name: str, tags: dict[str, str]) -> str:
    """Return the start of a line: name and tags. Raise EncodingError for invalid ones."""
    if NAME.fullmatch(name) is None:
        raise EncodingError(f"name {shorten(name)}: letters, digits and '_' only")
    if len(_CHECKED_NAMES) < _MOST_NAMES:
        _CHECKED_NAMES.add(name)
    return name + encode_tags(tags)


def encode_tags(tags: dict[str, str]) -> str:
    """Return the text of sorted tags in a line. Raise EncodingError for an invalid tag."""
    return "".join(
        f",{_escape(key, key)}={_escape(key, value)}" for key, value in sorted(tags.items())
    )


def format_float(value: float) -> str:
    """Return the text of a finite float, without rounding errors of arithmetic."""
    text = _repr(value)
    return text if len(text) < _MOST_DIGITS else _drop_remainder(value, text)


def _drop_remainder(value: float, text: str) -> str:
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


def _encode_time(time: float) -> int:
    """Return whole seconds since 1970. Raise EncodingError if they exceed 64 bits in ns."""
    if _EARLIEST <= time <= _LATEST:
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
