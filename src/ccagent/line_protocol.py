r"""The line protocol in both directions, as the components of ClusterCockpit read it.

    measurement,tag=value,... field=value time

Source: ClusterCockpit's flavor of the InfluxData line protocol: a line has one field, whose key is
the category of the message. A backslash stands before comma and space of a measurement, before
these and the equals sign of keys and tag values, before quotation mark and backslash of strings;
line feed, carriage return and tab of strings become `\n`, `\r` and `\t`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import EncodingError, UnparsableError
from ccagent.points import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Precision = Literal["s", "ns"]
"""Unit of the times on the wire; ClusterCockpit's store understands seconds only."""

Category = Literal["metric", "event", "log", "control", "query"]

CATEGORIES: dict[str, Category] = {
    "value": "metric", "event": "event", "log": "log", "control": "control", "query": "query",
}  # fmt: skip
"""Field keys and what they say of the message."""

TYPES = ("node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator")
LOG_LEVELS = ("debug", "info", "warn", "error")
"""What the tags `type` and `loglevel` may be."""

_SECOND = 10**9
_SIGNED = range(-(2**63), 2**63)
_UNSIGNED = range(2**64)
_LATEST_SECOND = _SIGNED.stop // _SECOND
_EARLIEST_NANOSECOND = 10**17
_REMEMBERED = 4096
_SHOWN = 40
_MOST_BITS_SHOWN = 128

_UNSENDABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_MEASUREMENT = re.compile(r"(?:[^, \\\x00-\x1f\x7f\ud800-\udfff]++|\\[, ]|\\)++")
_WORD = re.compile(r"(?:[^,= \\\x00-\x1f\x7f\ud800-\udfff]++|\\[,= ]|\\)++")
_ESCAPES = {_MEASUREMENT: re.compile(r"\\([, ])"), _WORD: re.compile(r"\\([,= ])")}
_VALUE = re.compile(
    r"""
    "(?P<string> (?: [^"\\\ud800-\udfff]++ | \\[^\ud800-\udfff] )*+ )"
    | (?: (?P<signed> -?[0-9]{1,20} )i | (?P<unsigned> [0-9]{1,20} )u
        | (?P<real> -?(?: [0-9]++\.?[0-9]*+ | \.[0-9]++ )(?: [eE][+-]?[0-9]++ )? )
        | (?P<true> t|T|true|True|TRUE ) | (?P<false> f|F|false|False|FALSE )
    )(?= [,\ \r\n]|\Z )
    """,
    re.VERBOSE,
)
_STRING_ESCAPE = re.compile(r'\\(["\\nrt])')
_WRITTEN_AS_LETTER = {"n": "\n", "r": "\r", "t": "\t"}
_TIME = re.compile(r"-?[0-9]{1,20}")
_COMMA, _EQUALS, _SPACES = re.compile(","), re.compile("="), re.compile(" ++")
_END = re.compile(r" *+\r?(?:\n|\Z)")
_BETWEEN = re.compile(r"(?: *+(?:#[^\n]*+|\r)?\n)*+ *+(?:#[^\n]*+|\r?\Z)?")
"""Empty lines and comments, and the spaces that a line may begin with."""


class LineError(UnparsableError):
    """Text that isn't line protocol. `line` and `column` count lines and characters from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected


class Unsigned(int):
    """An integer below 2**64 that is written with `u`."""

    __slots__ = ()


class Line(msgspec.Struct, frozen=True):
    """One message. time: nanoseconds since 1970, or None for the time of receipt."""

    measurement: str
    tags: dict[str, str]
    field: str
    value: int | float | str | bool | Unsigned
    time: int | None

    @property
    def category(self) -> Category | None:
        """What kind of message it is; None if ClusterCockpit has no such field."""
        return CATEGORIES.get(self.field)


def get_control(measurement: str, tags: dict[str, str], time: int) -> Line:
    """Ask for the value of a control."""
    return Line(measurement, tags | {"method": "GET"}, "control", "", time)


def put_control(measurement: str, tags: dict[str, str], value: str, time: int) -> Line:
    """Set a control to a value."""
    return Line(measurement, tags | {"method": "PUT"}, "control", value, time)


def encode(line: Line, precision: Precision = "s") -> str:
    """Write a line, tags sorted, without a line break.

    The value of a metric is a number, that of the other categories a string; fields that
    ClusterCockpit doesn't have may be anything. Raises EncodingError for what consumers refuse or
    would take for something else: a bad or empty name or tag, control characters, NaN, infinity,
    an integer out of range.
    """
    name, field = _start(line.measurement, line.field)
    # Tags come again with every tick; they are looked up by what they hold, since it may change.
    tags = _tag_set(tuple(line.tags.items()))
    value = line.value
    if type(value) is float and line.field == "value" and math.isfinite(value):
        text = repr(value)
    else:
        text = _value(line.measurement, line.field, value)
    time = line.time
    if time is None:
        return f"{name}{tags}{field}{text}"
    if type(time) is not int or time not in _SIGNED:
        raise EncodingError(f"{name}: time can't be {_shown(time)}")
    if precision == "s":
        time = time // _SECOND if time >= 0 else -(-time // _SECOND)
    return f"{name}{tags}{field}{text} {time}"


@lru_cache(_REMEMBERED)
def _start(measurement: str, field: str) -> tuple[str, str]:
    """Write measurement and field key, this with what surrounds it."""
    if field in {"value", "event"}:
        if NAME.fullmatch(measurement) is None:
            raise EncodingError(f"name {_shown(measurement)}: letters, digits and '_' only")
    elif measurement.startswith("#"):
        raise EncodingError(f"name {_shown(measurement)}: its line would be a comment")
    if "\\" in field:
        # Readers disagree on what a backslash before an escaped character is in a field's key.
        raise EncodingError(f"field {_shown(field)}: with a backslash")
    name = _checked("name", measurement).replace(",", "\\,").replace(" ", "\\ ")
    return name, f" {_word('field', field)}="


@lru_cache(_REMEMBERED)
def _tag_set(tags: tuple[tuple[str, str], ...]) -> str:
    return "".join(f",{_word('tag', key)}={_word('tag', value)}" for key, value in sorted(tags))


def _word(what: str, text: str) -> str:
    """Escape a key or the value of a tag."""
    return _checked(what, text).replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")


def _checked(what: str, text: str) -> str:
    if not text or not text.isprintable() or text.endswith("\\"):
        raise EncodingError(
            f"{what} {_shown(text)}: empty, with control characters or a final backslash"
        )
    return text


def _value(measurement: str, field: str, value: object) -> str:
    text = ""
    if isinstance(value, str):
        if field != "value" and _UNSENDABLE.search(value) is None:
            text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            text = '"' + text.replace("\r", "\\r").replace("\t", "\\t") + '"'
    elif field not in CATEGORIES or (field == "value" and not isinstance(value, bool)):
        text = _bare(value)
    if not text:
        raise EncodingError(f"{measurement}: {field} can't be {_shown(value)}")
    return text


def _bare(value: object) -> str:
    """Write a number or boolean; nothing for what can't be written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # A range looks for an instance of a subclass in all its numbers.
        number = int(value)
        if isinstance(value, Unsigned):
            return f"{number}u" if number in _UNSIGNED else ""
        return f"{number}i" if number in _SIGNED else ""
    if isinstance(value, float) and math.isfinite(value):
        # numpy's floats are floats whose repr says so.
        return float.__repr__(value)
    return ""


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:_SHOWN]) if isinstance(value, str) else ascii(value)[:_SHOWN]


def decode(text: str, precision: Precision | None = None) -> Line:
    """Read the only line of a text. Raises LineError.

    precision: the unit of times. Without it, what can be seconds (until 2262) is taken for them,
    and what can be nanoseconds since 1973 for these; a time in between is an error.
    """
    reader = _Reader(text, precision)
    line = reader.line()
    if not reader.is_at_end():
        raise reader.error("the end of the text")
    return line


def decode_lines(
    text: str,
    precision: Precision | None = None,
    *,
    complain: Callable[[LineError], None] | None = None,
) -> Iterator[Line]:
    """Read lines; empty ones and comments (`#`) are passed over.

    The first error is raised and ends the reading, as it does in ClusterCockpit's store; with
    `complain` it is handed to that, and costs only its line.
    """
    reader = _Reader(text, precision)
    while not reader.is_at_end():
        try:
            line = reader.line()
        except LineError as error:
            if complain is None:
                raise
            complain(error)
            reader.skip_line()
        else:
            yield line


class _Reader:
    """Reads a text from left to right, and stops where a line may begin."""

    def __init__(self, text: str, precision: Precision | None) -> None:
        self._text = text
        self._precision = precision
        self._position = 0
        self._lines = 0
        self._counted = 0
        self._skips(_BETWEEN)

    def is_at_end(self) -> bool:
        return self._position == len(self._text)

    def skip_line(self) -> None:
        """Go on behind the next line break."""
        self._position = self._text.find("\n", self._position) + 1 or len(self._text)
        self._skips(_BETWEEN)

    def error(self, expected: str) -> LineError:
        """Say what should be where the reader is."""
        # Positions only grow, so no line is counted twice however many are bad.
        self._lines += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        column = self._position - self._text.rfind("\n", 0, self._position)
        found = self._text[self._position : self._position + 1].strip("\n")
        return LineError(self._lines + 1, column, expected, repr(found) if found else "the end")

    def line(self) -> Line:
        measurement = self._name(_MEASUREMENT, "a measurement")
        tags: dict[str, str] = {}
        while self._skips(_COMMA):
            begin = self._position
            key = self._name(_WORD, "the key of a tag")
            self._take(_EQUALS, "'=' and the value of a tag")
            value = self._name(_WORD, "the value of a tag")
            if key in tags:
                self._position = begin
                raise self.error("a tag that the line doesn't have yet")
            tags[key] = value
        self._take(_SPACES, "',' and a tag or ' ' and a field")
        field = self._name(_WORD, "the key of a field")
        self._take(_EQUALS, "'=' and the value of a field")
        content = self._value()
        time = None
        if not self._skips(_END):
            self._take(_SPACES, "' ' and a time or the end of the line after its only field")
            time = self._time()
            self._skips(_SPACES)
            self._take(_END, "the end of the line after the time")
        self._skips(_BETWEEN)
        return Line(measurement, tags, field, content, time)

    def _skips(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._position)
        if found:
            self._position = found.end()
        return found

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = self._skips(pattern)
        if found is None:
            raise self.error(expected)
        return found

    def _name(self, pattern: re.Pattern[str], expected: str) -> str:
        text = self._take(pattern, expected)[0]
        return _ESCAPES[pattern].sub(r"\1", text) if "\\" in text else text

    def _value(self) -> int | float | str | bool:
        begin = self._position
        found = self._take(_VALUE, "a number, a boolean or a string between quotation marks")
        kind = found.lastgroup or ""
        text = found[kind]
        if kind == "string":
            return _STRING_ESCAPE.sub(lambda sign: _WRITTEN_AS_LETTER.get(sign[1], sign[1]), text)
        if kind in {"true", "false"}:
            return kind == "true"
        if kind == "real":
            if math.isfinite(float(text)):
                return float(text)
        elif int(text) in (_SIGNED if kind == "signed" else _UNSIGNED):
            return int(text) if kind == "signed" else Unsigned(text)
        self._position = begin
        raise self.error("a number of 64 bits")

    def _time(self) -> int:
        begin = self._position
        time = int(self._take(_TIME, "a time")[0])
        if self._precision != "ns" and abs(time) <= _LATEST_SECOND:
            return time * _SECOND
        is_nanoseconds = self._precision == "ns" or abs(time) >= _EARLIEST_NANOSECOND
        if self._precision != "s" and is_nanoseconds and time in _SIGNED:
            return time
        self._position = begin
        raise self.error(f"a time in {self._precision or 's or ns'}, of 64 bits in ns")


def check_message(line: Line, *, node_id: bool = False) -> list[str]:
    """Say, a sentence each, what a component of ClusterCockpit would miss in a message.

    node_id: metrics of type=node may have a type-id, as the specification recommends; the store
    hides such values beside those of the same metric that come without.
    """
    category, tags = line.category, line.tags
    if category is None:
        return [f"field {_shown(line.field)} is none of {', '.join(CATEGORIES)}"]
    # A control without hostname is meant for all nodes.
    mandatory = {"metric": ("cluster", "hostname", "type"), "control": ("type",)}
    keys = mandatory.get(category, ("hostname", "type"))
    missing = [f"no tag {key}" for key in keys if not tags.get(key)]
    missing += _wrong_place(tags, is_metric=category == "metric", node_id=node_id)
    missing += _wrong_content(line, category)
    if line.time is None:
        missing.append("no time")
    return missing


def _wrong_place(tags: dict[str, str], *, is_metric: bool, node_id: bool) -> Iterator[str]:
    place, number, part = tags.get("type"), tags.get("type-id"), tags.get("stype")
    if place and place not in TYPES:
        yield f"type {_shown(place)} is none of {', '.join(TYPES)}"
    elif place and place != "node" and not number:
        yield f"type {place} without type-id"
    elif place == "node" and number and is_metric and not node_id:
        yield "type node with type-id: the store hides it beside values without"
    if bool(part) != bool(tags.get("stype-id")):
        yield "stype and stype-id go together"
    elif part and place == "node" and is_metric:
        yield "type node with stype: the store ignores stype, one value overwrites the other"


def _wrong_content(line: Line, category: Category) -> Iterator[str]:
    tags, value = line.tags, line.value
    if category == "metric":
        if isinstance(value, bool | str):
            yield "the value of a metric is no number"
    elif not isinstance(value, str):
        yield f"the {category} is no string"
    if category in {"metric", "event"} and NAME.fullmatch(line.measurement) is None:
        yield f"name {_shown(line.measurement)}: letters, digits and '_' only"
    if category == "event" and line.measurement == "job" and not tags.get("function"):
        yield "no tag function"
    # cc-node-controller calls it `level` and writes it in capitals.
    level = tags.get("loglevel", tags.get("level", "")).lower()
    if category == "log" and level not in LOG_LEVELS:
        yield f"no tag loglevel of {', '.join(LOG_LEVELS)}"
    method = tags.get("method")
    if category == "control" and method not in {"GET", "PUT"}:
        yield "no tag method of GET, PUT"
    elif category == "control" and method == "GET" and value:
        yield "GET with a value"
