"""Parser for job_stats of an OST or MDT, Lustre 2.5 to 2.17.

Source: lprocfs_jobstats.c of these Lustre versions. Output of `lctl get_param` or of the file:

    obdfilter.scratch-OST0000.job_stats=
    job_stats:
    - job_id: 11317854:17627127:r01c01
      snapshot_time: 1669010520
      write_bytes: { samples: 25, unit: bytes, min: 1048576, max: 16777216, sum: 26214400 }

Up to 2.7, ids are printed unescaped, including line breaks. An id that imitates a header line must
not move entries of others to another target: `can_end_before` uses that an id has at most 31 bytes.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from itertools import compress
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.lustre.jobstats.entry import (
    BREAKS_OFF,
    CONTRADICTS,
    CUT,
    ELSEWHERE,
    LACKS_ID,
    LACKS_TIME,
    NOT_UNDERSTOOD,
    JobstatsEntry,
    Problem,
    Target,
    canonical,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator


# All quantifiers are possessive, so there is no backtracking. Group quantifiers are possessive only
# from Python 3.11.5: before, matching continues in the middle of a failed possessive group
# (gh-106052).
_POSSESSIVE = b"+" if sys.version_info >= (3, 11, 5) else b""
_NUMBER = rb"(\d{1,20}+)"
_NUMBERS = (
    _NUMBER + rb", unit: *+(\w{1,16}+)"
    rb"(?:, min: *+" + _NUMBER + rb", max: *+" + _NUMBER + rb", sum: *+" + _NUMBER +
    rb"(?:, sumsq: *+" + _NUMBER + rb")?" + _POSSESSIVE + rb")?" + _POSSESSIVE +
    rb"(?:, hist: \{([\w:, ]*+)\})?" + _POSSESSIVE + rb" *+\}[ \r]*+"
)  # fmt: skip
_INDENTATION = rb"[ \t]*+"
_STAT = _INDENTATION + rb"([\w.]{1,64}+): *+\{ samples: *+" + _NUMBERS + rb"\n"
_JOB_ID = _INDENTATION + rb"- job_id:(?: {10}|[ \t]*+)([^\n]*+)\n"
_SECONDS = rb": *+([\d.]{1,41}+)(?: secs\.nsecs)?[ \r]*+\n"

LINES = re.compile(
    rb"(?:" + _STAT + rb"|" + _JOB_ID.replace(rb")\n", rb"\n)") + rb"|([^\n]*+\n)|\Z)"
)
"""Any line: the eight groups of a stat, or a job id with its line end, or another line."""

_STATS = re.compile(rb"^" + _STAT, re.MULTILINE).findall
_HEAD = (
    # Most ids are printed unquoted, or in quotes without escapes.
    rb"- job_id:(?: {10}|[ \t]*+)(?:([ !#-\[\]-~][ -\[\]-~]*+)|\"([ !#-\[\]-~]*+)\"|([^\n]*+))\n"
    + _INDENTATION + rb"snapshot_time( *+)" + _SECONDS
)  # fmt: skip
TIME = re.compile(
    _INDENTATION + rb"(?:(snapshot|start)_time( *+)" + _SECONDS + rb"|elapsed_time *+:[^\n]*+\n)"
)
"""A time: its name, the spaces before the colon (only for times since boot), and seconds.

The elapsed time is not used. It is negative after a step of the server's clock.
"""

NUMBERS = 7
"""Number of values of a stat: samples, unit, min, max, sum, sumsq and hist."""


class Shape(NamedTuple):
    """The common shape of the entries of a target: start time or none, and operations."""

    has_start: bool
    operations: tuple[bytes, ...]


class EntryLayout:
    """Matches whole entries of one shape.

    All entries of a target have the same operations in the same order. So a pattern built from the
    first entries matches any other entry at once.

    Most operations have no samples: the pattern skips their lines. A second pattern reads the
    numbers of the other operations.
    """

    def __init__(self, shape: Shape) -> None:
        head = _HEAD
        if shape.has_start:
            head += _INDENTATION + rb"start_time *+" + _SECONDS
            head += _INDENTATION + rb"elapsed_time *+: [^\n]*+\n"
        # A character class instead of the lookbehind takes twice the time.
        stats = (
            _INDENTATION + re.escape(name)
            + rb": *+\{ samples: *+(?:0,[^\n]*+(?<=\})\n|([^\n]*+\n))"
            for name in shape.operations
        )  # fmt: skip
        self._match = re.compile(head + b"".join(stats)).match
        self._has_start = shape.has_start
        self.lines = (4 if shape.has_start else 2) + len(shape.operations)
        """Number of lines of an entry."""
        self._starts = [name + b": { samples: " for name in shape.operations]

    def take(
        self, text: bytes, position: int, end: int
    ) -> Generator[JobstatsEntry, None, tuple[int, int]]:
        """Yield entries from a position on, while they have the shape.

        Return the end position and the number of entries.
        """
        number = 0
        match, starts, has_start = self._match, self._starts, self._has_start
        first = 6 if has_start else 5
        start = b""
        while (found := match(text, position, end)) is not None:
            groups = found.groups()
            plain, quoted, raw, since_boot, snapshot = groups[:5]
            if has_start:
                start = groups[5]
            stats = groups[first:]
            done = [*map(add, compress(starts, stats), filter(None, stats))]
            lines = _STATS(b"".join(done))
            if len(lines) != len(done):
                break  # an operation is damaged
            if plain is not None:
                job_id = plain.decode("ascii")
            elif quoted is not None and not since_boot and b"." in snapshot:
                job_id = quoted.decode("ascii")
            else:
                job_id = canonical(
                    b'"%b"' % quoted if raw is None else raw,
                    is_escaped=is_escaped(snapshot, since_boot=since_boot != b""),
                )
            yield JobstatsEntry(job_id, snapshot, start, since_boot != b"", lines)
            position = found.end()
            number += 1
        return position, number


@lru_cache(maxsize=16)
def entry_layout(shape: Shape) -> EntryLayout:
    """Return the layout of a shape. Building one takes milliseconds."""
    return EntryLayout(shape)


def is_escaped(snapshot: bytes, *, since_boot: bool) -> bool:
    """Return whether the server version with such times quotes ids with special characters."""
    return not since_boot and b"." in snapshot


ENTRIES_BEFORE_LAYOUT = 64
"""Entries of a target to read line by line before a layout is built."""

_ENOUGH = 3
"""Entries of equal shape that are no chance."""

_MOST_OPERATIONS = 256
_LONGEST_TEXT = 1 << 20
_BLOCK = 65536
_SHOWN = 80
_ID, _OTHER = NUMBERS + 1, NUMBERS + 2

_HEADER = re.compile(rb"(mdt|obdfilter)\.([^\s=]{1,255}?)\.job_stats=(.*+)", re.DOTALL)
_BODY = b"job_stats:"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*+m")
# With shorter names, a whole fake entry would fit into a job id.
_PARAMETER = re.compile(rb"[A-Za-z][^\s={}]{3,}+=")
_WHOLE = (b"}", b"=", _BODY)


def parse(
    chunks: Iterable[bytes], target: str = "", kind: str = ""
) -> Iterator[Target | JobstatsEntry | Problem]:
    """Parse text in pieces of any size, with constant memory. Yield its items in order.

    target, kind: the requested target; the text then has no other target. Without them, header
    lines name the targets, and text without header belongs to targets `unnamed-1`, `unnamed-2`...
    Other parameters are skipped. Entries have their operations with samples.
    """
    parser = _Parser(target, kind)
    rest = b""
    for chunk in chunks:
        text = rest + chunk if rest else chunk
        end = parser.whole(text)
        if not end and len(text) > _LONGEST_TEXT:
            text += b"\n"  # job_stats has no such long lines
            end = len(text)
        yield from parser.feed(text, end)
        rest = text[end:]
    last = rest[rest.rfind(b"\n") + 1 :]
    is_cut = last.strip() != b"" and not last.strip().endswith(_WHOLE)
    rest = rest[: -len(last)] if is_cut else rest + b"\n"
    yield from parser.feed(rest, len(rest))
    yield from parser.end(last if is_cut else b"")


class _Draft:
    """The lines of an entry so far. is_broken: the entry does not count."""

    def __init__(self, raw_id: bytes, line: int) -> None:
        self.line = line
        self.is_broken = False
        self.lines: list[tuple[bytes, ...]] = []
        self.snapshot = b""
        self.start = b""
        self._raw_id = raw_id
        self._since_boot = False

    @property
    def job_id(self) -> str:
        """The canonical id."""
        escaped = is_escaped(self.snapshot, since_boot=self._since_boot)
        return canonical(self._raw_id, is_escaped=escaped)

    def can_end_before(self, target: Target | None) -> bool:
        """Return whether a line that starts a target or a parameter (None) ends the entry.

        Otherwise it is part of the id: an id is too short for a time, and the name of a target or
        an operation.
        """
        return self.snapshot != b"" and (target is not None or self.lines != [])

    def add(self, line: tuple[bytes, ...]) -> None:
        """Add the line of an operation."""
        if len(self.lines) < _MOST_OPERATIONS:
            self.lines.append(line)
        else:
            self.is_broken = True

    def add_time(self, time: re.Match[bytes]) -> bool:
        """Add a time; return False if it is not of this entry: it has another, or operations."""
        seconds = time[3]
        if self.lines:
            return False
        if time[1] == b"start":
            self.start = self.start or seconds
            return self.start == seconds
        if time[1] == b"snapshot" and not self.snapshot:
            self.snapshot, self._since_boot = seconds, time[2] != b""
        return time[1] is None or self.snapshot == seconds

    def fault(self) -> str:
        """Return why an entry with only well-formed lines does not count; empty if it counts."""
        if not self.snapshot:
            return LACKS_TIME
        return CONTRADICTS if len({line[0] for line in self.lines}) < len(self.lines) else ""

    def entry(self) -> JobstatsEntry:
        """Return the entry with its operations with samples."""
        lines = [line for line in self.lines if line[1].lstrip(b"0") and not self.is_broken]
        return JobstatsEntry(
            self.job_id, self.snapshot, self.start, self._since_boot, lines, self.is_broken
        )


class _Parser:
    """Reads whole entries once their layout is known, else single lines.

    draft: the current entry. shape: that of all entries of the target so far; None if they differ,
    as in a dump from which `grep` has removed unused operations.
    """

    def __init__(self, target: str, kind: str) -> None:
        self._given = Target(target, kind) if target else None
        self._target: Target | None = None
        self._awaits_body = False
        self._unnamed = 0
        self._line = 0
        self._has_crlf: bool | None = None
        self._draft: _Draft | None = None
        self._shape: Shape | None = None
        self._layout: EntryLayout | None = None
        self._entries = 0
        self._is_first = True

    def whole(self, text: bytes) -> int:
        """Return how many bytes of a text to feed: whole entries with a layout, else lines."""
        if self._layout is not None:
            end = text.rfind(b"\n- job_id:", max(0, len(text) - _BLOCK)) + 1
            if end:
                return end
        return text.rfind(b"\n") + 1

    def feed(self, text: bytes, end: int) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse the lines of a text up to `end`, the position after a line break."""
        if self._has_crlf is None and end:
            # The first line is no id of a user, which may end with a carriage return.
            self._has_crlf = text.endswith(b"\r\n", 0, text.find(b"\n") + 1)
        if self._has_crlf or b"\x1b" in text:
            text = _COLOUR.sub(b"", text[:end])
            text = text.replace(b"\r\n", b"\n") if self._has_crlf else text
            end = len(text)
        position = 0
        while position < end:
            if self._layout is None:
                stop = text.find(b"\n", position + _BLOCK, end) + 1 or end
            else:
                if self._target is not None and text.startswith(b"- job_id:", position):
                    yield from self._finish()
                    position, number = yield from self._layout.take(text, position, end)
                    self._line += number * self._layout.lines
                stop = text.find(b"\n- job_id:", position, end) + 1 or end
            yield from self._read_lines(text, position, stop)
            position = stop

    def end(self, cut_line: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Finish the text. cut_line: an incomplete last line that was not fed."""
        draft = self._draft
        # Lines of an entry are indented, but for times since boot.
        belongs_to_entry = cut_line[:1].isspace() or cut_line[:1] == b"s"
        if draft is not None and (belongs_to_entry or self._is_cut(draft)):
            draft.is_broken = True
            yield Problem(self._name, draft.line, draft.job_id, BREAKS_OFF, hides_entries=True)
        elif cut_line and (self._target or self._given):
            yield Problem(self._name, self._line, "", CUT, hides_entries=True)
        yield from self._finish()

    def _is_cut(self, draft: _Draft) -> bool:
        """Return whether an entry has only its id, or the first operations of the entry before."""
        if not (draft.snapshot or draft.lines):
            return True
        if self._shape is None or self._entries < _ENOUGH:
            return False
        usual, own = self._shape.operations, _shape_of(draft).operations
        return own != usual and own == usual[: len(own)]

    def _read_lines(
        self, text: bytes, position: int, end: int
    ) -> Iterator[Target | JobstatsEntry | Problem]:
        for match in LINES.findall(text, position, end):
            if match[_OTHER]:
                self._line += 1
                yield from self._read_other(match[_OTHER])
            elif match[_ID]:
                self._line += 1
                yield from self._finish()
                if self._target is None:
                    yield self._start(self._given or self._next_unnamed())
                self._awaits_body = False
                self._draft = _Draft(match[_ID][:-1], self._line)
            elif match[0]:
                self._line += 1
                if self._draft is not None:
                    self._draft.add(match[: NUMBERS + 1])
                elif self._target is not None:
                    shown = match[0] + b": " + match[1]
                    yield self._problem(shown, LACKS_ID, hides_entries=True)

    def _read_other(self, line: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse a line that is neither a job id nor an operation."""
        text = line.strip()
        if not text:
            return
        draft = self._draft
        time = TIME.fullmatch(line)
        if time is not None and draft is not None:
            if not draft.add_time(time):
                # It is the time of an entry with a damaged job id.
                yield self._problem(text, LACKS_ID, hides_entries=draft.can_end_before(None))
        elif text == _BODY or _HEADER.fullmatch(text) or _PARAMETER.match(text):
            yield from self._read_header(text)
        elif self._target or self._given:
            yield self._problem(text)

    def _read_header(self, text: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse a line that starts a target or another parameter, or imitates one."""
        header = _HEADER.fullmatch(text)
        target = _name_in(header) if header is not None else None
        body = header[3] if header is not None else b""
        draft, given = self._draft, self._given
        if _HEADER.match(body):
            yield self._problem(text)
        elif target is not None and body not in {b"", _BODY} and target in {self._target, given}:
            # `lctl get_param -H` prints the name of the parameter before each line.
            if self._target is None:
                yield self._start(target)
            line = self._line
            yield from self._read_lines(body + b"\n", 0, len(body) + 1)
            self._line = line
        elif text == _BODY and self._awaits_body:
            self._awaits_body = False
        elif (draft is not None and not draft.can_end_before(target)) or (
            given is not None and (self._target or (text != _BODY and target != given))
        ):
            yield self._problem(text, ELSEWHERE)
        else:
            yield from self._finish()
            self._target = None
            if target is not None or text == _BODY:
                yield self._start(given or target or self._next_unnamed())
                self._awaits_body = header is not None and not body

    def _start(self, target: Target) -> Target:
        self._target = target
        self._awaits_body = False
        self._shape = self._layout = None
        self._entries = 0
        self._is_first = True
        return target

    def _next_unnamed(self) -> Target:
        self._unnamed += 1
        return Target(f"unnamed-{self._unnamed}", "")

    def _finish(self) -> Iterator[JobstatsEntry | Problem]:
        """End the current entry. Build the layout once enough entries have one shape."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if not draft.is_broken and (reason := draft.fault()):
            draft.is_broken = True
            yield Problem(self._name, draft.line, draft.job_id, reason)
        yield draft.entry()
        self._entries += 1
        if draft.is_broken or self._layout is not None or not (self._shape or self._is_first):
            return
        shape = _shape_of(draft)
        self._shape = shape if self._is_first or shape == self._shape else None
        self._is_first = False
        if self._shape and self._entries >= ENTRIES_BEFORE_LAYOUT:
            self._layout = entry_layout(self._shape)

    def _problem(
        self, line: bytes, reason: str = NOT_UNDERSTOOD, *, hides_entries: bool = False
    ) -> Problem:
        """Return the problem of a line, whose entry does not count."""
        if self._draft is not None:
            self._draft.is_broken = True
        shown = canonical(line.strip()[:_SHOWN], is_escaped=False)
        return Problem(self._name, self._line, shown, reason, hides_entries)

    @property
    def _name(self) -> str:
        target = self._target or self._given
        return target.name if target is not None else ""


def _shape_of(draft: _Draft) -> Shape:
    return Shape(draft.start != b"", tuple([line[0] for line in draft.lines]))


def _name_in(header: re.Match[bytes]) -> Target:
    kind, name = (part.decode("utf-8", "backslashreplace") for part in header.group(1, 2))
    return Target(name, kind)
