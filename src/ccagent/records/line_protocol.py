r"""Decoder of ClusterCockpit's line protocol. Errors contain line and column.

    measurement,tag=value,... field=value time

Source: ClusterCockpit's flavor of the InfluxData line protocol. A line has one field. Its key is
the category of the message. A backslash escapes comma and space in a measurement; comma, space and
equals sign in keys and tag values; quotation mark and backslash in strings. Line feed, carriage
return and tab in strings become `\n`, `\r` and `\t`. `points.py` writes lines.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Precision = Literal["s", "ns"]
"""Unit of times in messages. ClusterCockpit's store accepts only seconds."""

ReadPrecision = Precision | Literal["any"]
"""Unit of times to read. `any`: numbers of unknown unit, left to the caller."""

Category = Literal["metric", "event", "log", "control", "query"]

CATEGORIES: dict[str, Category] = {
    "value": "metric", "event": "event", "log": "log", "control": "control", "query": "query",
}  # fmt: skip
"""Categories of messages by the key of their field."""

SECOND = 10**9
"""Nanoseconds per second."""

SIGNED = range(-(2**63), 2**63)
UNSIGNED = range(2**64)
"""The integer ranges of fields (with `i` and `u`) and times."""


class LineError(UnparsableError):
    """Text that is not line protocol. `line` and `column` count lines and characters from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected


class Line(msgspec.Struct, frozen=True):
    """One message. time: nanoseconds since 1970, or None for the time of receipt."""

    measurement: str
    tags: dict[str, str]
    field: str
    value: int | float | str | bool
    time: int | None

    @property
    def category(self) -> Category | None:
        """The category of the message; None if ClusterCockpit has no such field."""
        return CATEGORIES.get(self.field)


MOST_TAGS = 1000
"""Tags that a line may have: memory for more would be the sender's to take."""

_LATEST_SECOND = SIGNED.stop // SECOND
_EARLIEST_NANOSECOND = 10**17

_MEASUREMENT = re.compile(r"(?:[^, \\\x00-\x1f\x7f\ud800-\udfff]++|\\[, ]?)++")
_WORD = re.compile(r"(?:[^,= \\\x00-\x1f\x7f\ud800-\udfff]++|\\[,= ]?)++")
_ESCAPED = {_MEASUREMENT: ", ", _WORD: ",= "}
_VALUE = re.compile(
    r"""
    "(?P<string> (?: [^"\\\ud800-\udfff]++ | \\[^\ud800-\udfff] )*+ )"
    | (?: (?P<signed> -?(?=[0-9])0{0,99}+[0-9]{0,20} )i
        | (?P<unsigned> (?=[0-9])0{0,99}+[0-9]{0,20} )u
        | (?P<real> -?(?: [0-9]++\.?[0-9]*+ | \.[0-9]++ )(?: [eE][+-]?[0-9]++ )? )
        | (?P<true> t|T|true|True|TRUE ) | (?P<false> f|F|false|False|FALSE )
    )(?= [,\ \r\n]|\Z )
    """,
    re.VERBOSE,
)
_ESCAPED_IN_STRINGS = {'\\"': '"', "\\n": "\n", "\\r": "\r", "\\t": "\t"}
_TIME = re.compile(r"-?[0-9]{1,20}")
_COMMA, _EQUALS, _SPACES = re.compile(","), re.compile("="), re.compile(" ++")
_END = re.compile(r" *+\r?(?:\n|\Z)")
_BETWEEN = re.compile(r"(?: *+(?:#[^\n]*+|\r)?\n)* *+(?:#[^\n]*+|\r?\Z)?")
"""Empty lines, comments, and spaces at the start of a line."""


def decode(text: str, precision: ReadPrecision | None = None) -> Line:
    """Return the only line of a text. Raise LineError for invalid text.

    precision: the unit of times. Without it, a number up to the seconds of 2262 is read as seconds.
    A number from the nanoseconds of 1973 on is read as nanoseconds. A number in between is an
    error. With `any` the time of a line is the unchanged number.
    """
    reader = _LineReader(text, precision)
    line = reader.read_line()
    if not reader.is_at_end():
        raise reader.error("the end of the text")
    return line


def decode_lines(
    text: str,
    precision: ReadPrecision | None = None,
    *,
    complain: Callable[[LineError], None] | None = None,
) -> Iterator[Line]:
    """Yield the lines of a text, without empty lines and comments (`#`).

    Raise LineError at the first error, as ClusterCockpit's store does. With `complain`, each error
    is passed to `complain` and only its line is skipped.
    """
    reader = _LineReader(text, precision)
    while not reader.is_at_end():
        try:
            line = reader.read_line()
        except LineError as error:
            if complain is None:
                raise
            complain(error)
            reader.skip_line()
        else:
            yield line


class _LineReader:
    """Reads a text from left to right. Between two calls its position is the start of a line."""

    def __init__(self, text: str, precision: ReadPrecision | None) -> None:
        self._text = text
        self._precision = precision
        self._position = 0
        self._lines = 0
        self._counted = 0
        self._skip(_BETWEEN)

    def is_at_end(self) -> bool:
        """Return whether the position is the end of the text."""
        return self._position == len(self._text)

    def skip_line(self) -> None:
        """Move to the position after the next line break."""
        self._position = self._text.find("\n", self._position) + 1 or len(self._text)
        self._skip(_BETWEEN)

    def error(self, expected: str) -> LineError:
        """Return an error at the current position."""
        # Positions only grow: each line is counted once, for any number of bad lines.
        self._lines += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        column = self._position - self._text.rfind("\n", 0, self._position)
        found = self._text[self._position : self._position + 1].strip("\n")
        return LineError(self._lines + 1, column, expected, repr(found) if found else "the end")

    def read_line(self) -> Line:
        """Read a line, and the empty lines and comments after it. Raise LineError."""
        measurement = self._read_name(_MEASUREMENT, "a measurement")
        tags: dict[str, str] = {}
        while self._skip(_COMMA):
            begin = self._position
            key = self._read_name(_WORD, "the key of a tag")
            self._take(_EQUALS, "'=' and the value of a tag")
            value = self._read_name(_WORD, "the value of a tag")
            if key in tags:
                self._position = begin
                raise self.error("a tag that the line doesn't have yet")
            if len(tags) == MOST_TAGS:
                self._position = begin
                raise self.error(f"a field after at most {MOST_TAGS} tags")
            tags[key] = value
        self._take(_SPACES, "',' and a tag or ' ' and a field")
        field = self._read_name(_WORD, "the key of a field")
        self._take(_EQUALS, "'=' and the value of a field")
        content = self._read_value()
        time = None
        if not self._skip(_END):
            self._take(_SPACES, "' ' and a time or the end of the line after its only field")
            time = self._read_time()
            self._skip(_SPACES)
            self._take(_END, "the end of the line after the time")
        self._skip(_BETWEEN)
        return Line(measurement, tags, field, content, time)

    def _skip(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move past a pattern if it matches at the position."""
        found = pattern.match(self._text, self._position)
        if found:
            self._position = found.end()
        return found

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Move past a pattern. Raise LineError if it does not match at the position."""
        found = self._skip(pattern)
        if found is None:
            raise self.error(expected)
        return found

    def _read_name(self, pattern: re.Pattern[str], expected: str) -> str:
        text = self._take(pattern, expected)[0]
        if "\\" in text:
            for character in _ESCAPED[pattern]:
                text = text.replace(f"\\{character}", character)
        return text

    def _read_value(self) -> int | float | str | bool:
        begin = self._position
        found = self._take(_VALUE, "a number, a boolean or a string between quotation marks")
        kind = found.lastgroup or ""
        text = found[kind]
        if kind == "string":
            return _unescape(text) if "\\" in text else text
        if kind in {"true", "false"}:
            return kind == "true"
        if kind == "real":
            if math.isfinite(float(text)):
                return float(text)
        elif int(text) in (SIGNED if kind == "signed" else UNSIGNED):
            return int(text)
        self._position = begin
        raise self.error("a number of 64 bits")

    def _read_time(self) -> int:
        begin = self._position
        time = int(self._take(_TIME, "a time")[0])
        if self._precision == "any" and time in SIGNED:
            return time
        if self._precision != "ns" and abs(time) <= _LATEST_SECOND:
            return time * SECOND
        is_nanoseconds = self._precision == "ns" or abs(time) >= _EARLIEST_NANOSECOND
        if self._precision != "s" and is_nanoseconds and time in SIGNED:
            return time
        self._position = begin
        raise self.error(f"a time in {self._precision or 's or ns'}, of 64 bits in ns")


def _unescape(text: str) -> str:
    """Return a string without escapes. `replace` is fast for a hostile string of escapes only."""
    parts = text.split("\\\\")
    for number, part in enumerate(parts):
        if "\\" in part:
            for written, character in _ESCAPED_IN_STRINGS.items():
                part = part.replace(written, character)  # noqa: PLW2901
            parts[number] = part
    return "\\".join(parts)
