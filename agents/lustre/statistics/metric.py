"""Metrics of Lustre statistics, and the combination of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator


_LONGEST_NAME = 512
_NAME = re.compile(rb"[A-Za-z][\w@:-]*+(?:\.[^=\s]++)?")
_LEFT_OUT = b".job_stats"


class Parameter(NamedTuple):
    """One parameter: its name as lctl prints it, and its value without outer line breaks."""

    name: str
    value: bytes


def parse_parameters(content: bytes) -> Iterator[Parameter]:
    """Yield the parameters of a dump in order, including repeated ones.

    Values of job_stats are skipped without parsing their lines. Text before the first parameter is
    ignored. Never raises; takes linear time.
    """
    name = ""
    start = 0
    for line, equals in _names(content):
        if name:
            yield Parameter(name, content[start:line].strip(b"\n"))
        found = content[line:equals]
        name = "" if found.endswith(_LEFT_OUT) else found.decode("ascii", "backslashreplace")
        start = equals + 1
    if name:
        yield Parameter(name, content[start:].strip(b"\n"))


def _names(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the position of each line `name=...` and of its `=`.

    Lines without a `=` are skipped, and only the first `=` of a line counts. So no byte is searched
    more than a few times.
    """
    position = 0
    while (equals := content.find(b"=", position)) >= 0:
        line = content.rfind(b"\n", position, equals) + 1 or position
        if equals - line <= _LONGEST_NAME and _NAME.fullmatch(content, line, equals):
            yield line, equals
        position = content.find(b"\n", equals) + 1
        if not position:
            return


def show_text(text: str | bytes) -> str:
    """Return external text for an error message: its beginning, escaped where needed."""
    if isinstance(text, bytes):
        text = text[:80].decode("utf-8", "backslashreplace")
    return text[:80] if text.isprintable() else repr(text[:80])


INTEGERS = range(2**63)
"""Largest number to send: counters are unsigned, but integers of line protocol are signed."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_TARGET = re.compile(r"(?:[A-Za-z0-9_-]{1,64}-(OST|MDT)[0-9a-f]{4}|MGS)", re.ASCII)
KINDS = {"ost": "OST", "mdt": "MDT", "mgs": "MGS"}
"""Kinds of targets: in metric names, and for display."""

Complain = Callable[[str], None]
"""Callback for a message about unparsable text."""


class Quantity(msgspec.Struct, frozen=True):
    """Unit and meaning of a metric, and how scopes combine to the node value."""

    unit: str
    description: str
    combined: Literal["sum", "max", "min"] = "sum"

    def combine(self, values: Iterable[int]) -> int:
        """Combine one or more values to one value."""
        match self.combined:
            case "sum":
                return sum(values)
            case "max":
                return max(values)
            case "min":
                return min(values)


class TargetScope(NamedTuple):
    """The part of a node named by the tags `stype` and `stype-id`."""

    stype: str
    stype_id: str


class Measurement(NamedTuple):
    """One measured number: entry in the table of metrics, name, value, and scope.

    The entry differs from the name if the table has one entry for many names, with a capital word
    as placeholder. Without a scope the number is the node value.
    """

    entry: str
    name: str
    value: int
    place: TargetScope | None = None


class MetricGroup(msgspec.Struct, frozen=True):
    """Metrics that are switched on together.

    patterns: arguments of `lctl get_param`. programs, files (below /): their output or content is
    passed as a parameter named after the command or path. names: matches the group's parameters,
    with optional groups `place` and `leaf`. read: parses these two and the value; raises
    UnparsableError if the whole value is unparsable.
    """

    names: re.Pattern[str]
    read: Callable[[str, str, bytes, Complain], Iterable[Measurement]]
    patterns: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()


def number(text: bytes) -> int:
    """Return an integer. Raise UnparsableError if it is invalid or too large to send."""
    if _NUMBER.fullmatch(text):
        value = int(text)
        if value in INTEGERS:
            return value
    raise UnparsableError(f"{show_text(text)} is no number")


def target(text: str) -> tuple[TargetScope, str]:
    """Return a target, `scratch-OST001f` or `MGS`, and its kind. Raise UnparsableError."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise UnparsableError(f"{show_text(text)} is no target")
    return TargetScope("filesystem", text), (found[1] or "MGS").lower()


_OPERATION = re.compile(rb"[a-z][a-z0-9_]{0,63}")
_TIMES = frozenset({b"snapshot_time", b"start_time", b"elapsed_time"})
_BYTES = "_bytes"


class Operation(NamedTuple):
    """Number of samples of an operation, and the sum in `unit` if printed."""

    name: str
    samples: int
    unit: str
    sum: int | None


def parse_operations(content: bytes, complain: Complain) -> Iterator[Operation]:
    """Yield the operations of a `stats`; report and skip an unparsable line."""
    for line in content.split(b"\n"):
        words = line.split(None, 8)
        if not words or words[0].rstrip(b":") in _TIMES:
            continue
        try:
            yield _operation(words)
        except UnparsableError as error:
            complain(f"{error}, in {show_text(line)}")


def _operation(words: list[bytes]) -> Operation:
    if _OPERATION.fullmatch(words[0]) is None:
        raise UnparsableError("no operation")
    if len(words) < 4 or words[2] != b"samples" or words[3][:1] != b"[" or words[3][-1:] != b"]":
        raise UnparsableError("no samples with a unit")
    total = number(words[6]) if len(words) > 6 else None
    unit = words[3][1:-1].decode("ascii", "replace")
    return Operation(words[0].decode(), number(words[1]), unit, total)


def operation_metrics(prefix: str, where: str) -> dict[str, Quantity]:
    """Return the metrics of `operation_readings`, by name."""
    return {
        f"{prefix}_OPERATION": Quantity("requests", f"operations {where}"),
        f"{prefix}_OPERATION_usecs": Quantity("us", f"time of operations, {where}"),
        f"{prefix}_OPERATION_bytes": Quantity("B", f"bytes of operations that move data, {where}"),
        f"{prefix}_OPERATION_requests": Quantity(
            "requests", f"operations that move data, {where}: read, write"
        ),
        f"{prefix}_OPERATION_sum": Quantity(
            "", f"sum of other counted items of operations {where}: pages, open files"
        ),
    }


def operation_readings(
    prefix: str, place: TargetScope, operation: Operation
) -> Iterator[Measurement]:
    """Yield number of samples and sum of an operation.

    `read_bytes` counts the requests that moved data. It becomes `read_bytes` and `read_requests`.
    From 2.14 on, `read` without bytes has the same requests with their times.
    """
    name, samples, unit, total = operation
    # Some versions print bytes with the unit reqs, so the name decides first.
    if name.endswith(_BYTES) or unit == "bytes":
        name = name.removesuffix(_BYTES)
        if total is not None:
            yield _reading(prefix, name, _BYTES, total, place)
        elif not samples:
            # An operation without samples has no sum.
            yield _reading(prefix, name, _BYTES, 0, place)
        yield _reading(prefix, name, "_requests", samples, place)
        return
    yield _reading(prefix, name, "", samples, place)
    if total is not None:
        kind = "_usecs" if unit in {"usec", "usecs"} else "_sum"
        yield _reading(prefix, name, kind, total, place)


def _reading(prefix: str, name: str, suffix: str, value: int, place: TargetScope) -> Measurement:
    return Measurement(f"{prefix}_OPERATION{suffix}", f"{prefix}_{name}{suffix}", value, place)
