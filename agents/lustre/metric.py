"""Parameters of `lctl get_param`, and measurements in their values.

Sources: lctl(8), lctl-get_param(8). A one-line value is on the line of its name. A value of several
lines follows it. An empty value may have either form:

    obdfilter.scratch-OST0000.num_exports=12
    obdfilter.scratch-OST0000.stats=
    snapshot_time 1709306082.170995043 secs.nsecs
    read_bytes 71482249 samples [bytes] 4096 1048576 58370831220736
    ost.OSS.ost_seq.stats=snapshot_time 1709306082.171480402 secs.nsecs

Operations: lprocfs_stats_seq_show() in lprocfs_status.c of Lustre. A line has the operation, the
number of samples and a unit. Some also have minimum, maximum, sum and sum of squares. Minimum,
maximum and squares are ignored: they cover the whole time since the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from ccagent.errors import UnparsableError

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
Complain = Callable[[str], None]
"""Callback for a message about unparsable text."""


class TargetScope(NamedTuple):
    """The part of a node named by the tags `stype` and `stype-id`."""

    stype: str
    stype_id: str


class Measurement(NamedTuple):
    """One measured number. Without a scope it is the node value."""

    name: str
    value: int
    scope: TargetScope | None = None


class MetricGroup(msgspec.Struct, frozen=True):
    """Metrics that are switched on together.

    patterns: arguments of `lctl get_param`. programs, files (below /): their output or content is
    passed as a parameter named after the command or path. names: matches the group's parameters,
    with optional groups `owner` and `leaf`. read: parses these two and the value; raises
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
    """Yield the operations of a `stats`; report and skip an unparsable line.

    OSTs of 2.10 print `statfs` twice: the requests of clients, then the calls within the server,
    such as those of reading its free space. The first line of an operation counts.
    """
    seen: set[bytes] = set()
    for line in content.split(b"\n"):
        words = line.split(None, 8)
        if not words or words[0].rstrip(b":") in _TIMES or words[0] in seen:
            continue
        try:
            operation = _operation(words)
        except UnparsableError as error:
            complain(f"{error}, in {show_text(line)}")
            continue
        seen.add(words[0])
        yield operation


def _operation(words: list[bytes]) -> Operation:
    if _OPERATION.fullmatch(words[0]) is None:
        raise UnparsableError("no operation")
    if len(words) < 4 or words[2] != b"samples" or words[3][:1] != b"[" or words[3][-1:] != b"]":
        raise UnparsableError("no samples with a unit")
    total = number(words[6]) if len(words) > 6 else None
    unit = words[3][1:-1].decode("ascii", "replace")
    return Operation(words[0].decode(), number(words[1]), unit, total)


def operation_readings(
    prefix: str, scope: TargetScope, operation: Operation
) -> Iterator[Measurement]:
    """Yield number of samples and sum of an operation.

    `read_bytes` counts the requests that moved data. It becomes `read_bytes` and `read_requests`.
    From 2.14 on, `read` without bytes has the same requests with their times.
    """
    name, samples, unit, total = operation
    # Some versions print bytes with the unit reqs, so the name decides first.
    moves_data = name.endswith(_BYTES) or unit == "bytes"
    name = f"{prefix}_{name.removesuffix(_BYTES) if moves_data else name}"
    if moves_data:
        # An operation without samples has no sum.
        total = 0 if total is None and not samples else total
        kind = _BYTES
    else:
        yield Measurement(name, samples, scope)
        kind = "_usecs" if unit in {"usec", "usecs"} else "_sum"
    if total is not None:
        yield Measurement(name + kind, total, scope)
    if moves_data:
        yield Measurement(f"{name}_requests", samples, scope)
