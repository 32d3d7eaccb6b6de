"""Parsing job_stats: the text of the parameter on an OST or MDT, of Lustre 2.5 to 2.17.

Source: lprocfs_jobstats.c of Lustre at those versions, as `lctl get_param` or the file prints it:

    obdfilter.scratch-OST0000.job_stats=
    job_stats:
    - job_id:          11317854:17627127:r01c01
      snapshot_time:   1669010520
      write_bytes:     { samples: 25, unit: bytes, min: 1048576, max: 16777216, sum: 26214400 }
"""

from __future__ import annotations

import re
import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.lustre.entry_id import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_LINE = 4096
_LONGEST_TEXT = 1 << 20
_MOST_OPERATIONS = 256
_JOB_ID, _INDENTATION, _SNAPSHOT, _START, _OTHER = range(8, 13)
_SHOWN = 80

# Every alternative takes a whole line, and the last takes any, so that the text is gone through
# once. All quantifiers are possessive, so nothing is tried twice; those of groups only where Python
# can: before 3.11.5 it goes on in the middle of a possessive group that has failed (gh-106052).
_POSSESSIVE = b"+" if sys.version_info >= (3, 11, 5) else b""
_NUMBER = rb"(\d{1,20}+)"
_STAT = (
    rb" {2}([\w.]{1,64}+): *+\{ samples: *+" + _NUMBER + rb", unit: *+(\w{1,16}+)"
    rb"(?:, min: *+" + _NUMBER + rb", max: *+" + _NUMBER + rb", sum: *+" + _NUMBER +
    rb"(?:, sumsq: *+" + _NUMBER + rb")?" + _POSSESSIVE + rb")?" + _POSSESSIVE +
    rb"(?:, hist: \{([^{}\n]*+)\})?" + _POSSESSIVE + rb" *+\}[ \r]*+\n"
)  # fmt: skip
_TIME = rb"_time *+: *+([\d.]{1,41}+)(?: secs\.nsecs)?[ \r]*+\n"
_LINE = (
    rb"(?:" + _STAT + rb"|- job_id:(?: {10}|[ \t]*+)([^\n]*+\n)"
    rb"(?:( *+)snapshot" + _TIME + rb")?(?: *+start" + _TIME + rb")?"
    rb"|([^\n]*+\n)|\Z)"
)  # fmt: skip
# Most operations have never been done: most lines of the text are of this kind. (A set of
# characters instead of the look behind would take twice the time.)
_UNUSED = rb"(?: {2}[\w.]{1,64}+: *+\{ samples: *+0,[^\n]*+(?<=\})\n)*" + _POSSESSIVE

_FAST = re.compile(_UNUSED + _LINE)
_PLAIN = re.compile(_LINE)
_ONE_STAT = re.compile(_STAT)
_STAT_BEGINS = re.compile(rb" {2}[\w.]{1,64}+: *+\{ samples:[^{}]*+(?:\{[^{}]*+\}?+)?")

_HEADER = re.compile(rb"(mdt|obdfilter)\.([^\s=]{1,255}?)\.job_stats=(.*+)", re.DOTALL)
_PARAMETER = re.compile(rb"[A-Za-z][^\s={}]*+=")
_A_TIME = re.compile(rb"( *+)(snapshot|start|elapsed)" + _TIME)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*+m")


class Stat(NamedTuple):
    """The numbers of one operation, as they are printed; None for those that aren't."""

    samples: int
    unit: str
    min: int | None = None
    max: int | None = None
    sum: int | None = None
    sumsq: int | None = None
    hist: str | None = None


class Target(NamedTuple):
    """The text of a target begins. kind: `mdt`, `obdfilter`, or empty if no line names it."""

    name: str
    kind: str


class Entry(msgspec.Struct, gc=False):
    """What one job id has done on a target.

    job_id: canonical. snapshot, start: seconds as they are printed, empty if they aren't;
    since_boot: they count from the server's boot (2.15.0 and 2.15.1), else from 1970.
    lines: of each operation name, samples, unit, min, max, sum, sumsq and hist, as they are
    printed, in the order of the text; without operations that have no samples, unless all were
    asked for. is_broken: a line could not be understood, so that counters are missing.
    """

    job_id: str
    snapshot: bytes = b""
    start: bytes = b""
    since_boot: bool = False
    lines: list[tuple[bytes, ...]] = []
    is_broken: bool = False

    @property
    def stats(self) -> dict[str, Stat]:
        """The numbers by operation; of one that stands there twice the last."""
        return {line[0].decode("ascii", "replace"): _stat(line) for line in self.lines}


class Problem(NamedTuple):
    """A line that could not be understood: its number in the text, and how it begins."""

    target: str
    line: int
    text: str


def parse(
    chunks: Iterable[bytes], target: str = "", kind: str = "", *, unused: bool = False
) -> Iterator[Target | Entry | Problem]:
    """Parse text in any pieces, with constant memory, and give what it holds in its order.

    `target` and `kind` say whose text it is where no line names the target; without them such
    text belongs to targets `unnamed-1`, `unnamed-2`... Other parameters around are skipped.
    `unused`: operations without samples are wanted too.
    """
    parser = _Parser(target, kind, unused=unused)
    rest = b""
    for chunk in chunks:
        text = rest + chunk if rest else chunk
        end = text.rfind(b"\n") + 1
        if not end and len(text) > _LONGEST_TEXT:
            text += b"\n"  # nothing of ours has lines like that
            end = len(text)
        yield from parser.feed(text, end)
        rest = text[end:]
    if rest:
        yield from parser.feed(rest + b"\n", len(rest) + 1)
    yield from parser.end()


class _Parser:
    """Goes from line to line; remembers the entry that they belong to."""

    def __init__(self, target: str, kind: str, *, unused: bool) -> None:
        self._lines = _PLAIN if unused else _FAST
        self._keeps_unused = unused
        self._given = Target(target, kind) if target else None
        self._target: Target | None = None
        self._awaits_body = False
        self._unnamed = 0
        self._line = 0
        self._entry: Entry | None = None
        self._held = b""
        self._dropped: deque[tuple[bytes, ...]] = deque(maxlen=0)

    def feed(self, text: bytes, end: int) -> Iterator[Target | Entry | Problem]:
        """Take the lines of a text up to `end`, which is behind a line's end."""
        if b"\x1b" in text:
            text = _COLOUR.sub(b"", text[:end])
            end = len(text)
        entry = self._entry
        append = self._dropped.append if entry is None else entry.lines.append
        keeps_unused = self._keeps_unused
        counted = 0
        for match in self._lines.findall(text, 0, end):
            if match[0]:
                if match[1] != b"0" or keeps_unused:
                    append(match)
            elif match[_JOB_ID]:
                if entry is not None:
                    yield _ended(entry)
                if self._target is None:
                    yield self._begin(self._given or self._next_unnamed())
                snapshot = match[_SNAPSHOT]
                entry = Entry(
                    canonical(match[_JOB_ID][:-1]),
                    snapshot,
                    match[_START],
                    # Only versions that count from boot print the line without indentation.
                    not match[_INDENTATION] and snapshot != b"",
                    [],
                )
                append = entry.lines.append
            elif match[_OTHER]:
                other = match[_OTHER]
                begin = max(counted, text.find(other, counted))
                self._line += text.count(b"\n", counted, begin)
                counted = begin
                self._entry = entry
                yield from self._other(other)
                entry = self._entry
                append = self._dropped.append if entry is None else entry.lines.append
        self._line += text.count(b"\n", counted, end)
        self._entry = entry

    def end(self) -> Iterator[Entry | Problem]:
        """Give what the end of the text leaves open."""
        if self._held:
            yield self._problem(self._held)
        if self._entry is not None:
            yield _ended(self._entry)

    def _other(self, line: bytes) -> Iterator[Target | Entry | Problem]:
        """Take a line that is none of an entry's usual ones."""
        if self._held:
            held, self._held = self._held, b""
            if self._continued(held, line):
                return
            yield self._problem(held)
        text = line.rstrip(b"\r\n")
        header = _HEADER.fullmatch(text)
        if header is not None:
            yield from self._named(header)
        elif text == b"job_stats:":
            yield from self._body_begins()
        elif _PARAMETER.match(text):
            yield from self._end_entry()
            self._target = None
        elif (self._target or self._given) is not None and text.strip():
            time = _A_TIME.fullmatch(line) if self._entry is not None else None
            if time is not None:
                self._set_time(time)
            elif self._entry is not None and _STAT_BEGINS.fullmatch(text):
                self._held = text  # a terminal has wrapped it
            else:
                yield self._problem(line)

    def _body_begins(self) -> Iterator[Target | Entry | Problem]:
        """Take the line before the entries; without a name before it, it begins a target."""
        if self._awaits_body:
            self._awaits_body = False
        elif self._given is None or self._target is None:
            yield from self._end_entry()
            yield self._begin(self._given or self._next_unnamed())

    def _named(self, header: re.Match[bytes]) -> Iterator[Target | Entry | Problem]:
        """Take a line with the parameter's name: one before the text, or one before each line."""
        kind, name = (part.decode("utf-8", "backslashreplace") for part in header.group(1, 2))
        target, rest = Target(name, kind), header[3]
        is_body = rest not in {b"", b"job_stats:"}
        if target != self._target or not is_body:
            yield from self._end_entry()
            yield self._begin(target)
            self._awaits_body = not rest
        if is_body:
            line = self._line
            yield from self.feed(rest + b"\n", len(rest) + 1)
            self._line = line

    def _continued(self, held: bytes, line: bytes) -> bool:
        """Join a line with the one before it, which was wrapped; False if they don't fit."""
        joined = held + line
        match = _ONE_STAT.fullmatch(joined)
        if match is not None:
            if self._entry is not None and (int(match[2]) or self._keeps_unused):
                self._entry.lines.append(match.groups(b""))
            return True
        text = joined.rstrip(b"\r\n")
        if len(text) < _LONGEST_LINE and _STAT_BEGINS.fullmatch(text):
            self._held = text
            return True
        return False

    def _set_time(self, time: re.Match[bytes]) -> None:
        """Take a time that doesn't stand at its usual place behind the id."""
        entry = self._entry
        if entry is not None and time[2] == b"snapshot":
            entry.snapshot = time[3]
            entry.since_boot = not time[1]
        elif entry is not None and time[2] == b"start":
            entry.start = time[3]

    def _begin(self, target: Target) -> Target:
        self._target = target
        return target

    def _next_unnamed(self) -> Target:
        self._unnamed += 1
        return Target(f"unnamed-{self._unnamed}", "")

    def _end_entry(self) -> Iterator[Entry]:
        if self._entry is not None:
            yield _ended(self._entry)
            self._entry = None

    def _problem(self, line: bytes) -> Problem:
        if self._entry is not None:
            self._entry.is_broken = True
        shown = canonical(line.strip()[:_SHOWN])
        return Problem(self._target.name if self._target else "", self._line + 1, shown)


def _stat(line: tuple[bytes, ...]) -> Stat:
    """Understand the words of a line."""
    _, samples, unit, low, high, total, squares, hist = line[:8]
    return Stat(
        int(samples),
        unit.decode("ascii", "replace"),
        int(low) if low else None,
        int(high) if high else None,
        int(total) if total else None,
        int(squares) if squares else None,
        hist.decode("ascii", "replace").strip() if hist else None,
    )


def _ended(entry: Entry) -> Entry:
    if len(entry.lines) > _MOST_OPERATIONS:
        entry.is_broken = True
        entry.lines = []
    return entry
