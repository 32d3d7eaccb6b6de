"""Parser for job_stats of an OST or MDT, Lustre 2.5 to 2.17.

Source: lprocfs_jobstats.c of these Lustre versions. Output of `lctl get_param` or of the file:

    obdfilter.scratch-OST0000.job_stats=
    job_stats:
    - job_id: 11317854:17627127:r01c01
      snapshot_time: 1669010520
      write_bytes: { samples: 25, unit: bytes, min: 1048576, max: 16777216, sum: 26214400 }

Up to 2.7, ids are printed unescaped, including line breaks. An id that imitates a header line must
not move entries of others to another target: an id has at most 31 bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry_draft import EntryDraft, TargetShape
from ccagent.agents.lustre.jobstats.entry_id import canonical
from ccagent.agents.lustre.jobstats.entry_layout import LINES, NUMBERS, STAT, TIME, entry_layout
from ccagent.agents.lustre.jobstats.line_ends import normalize_line_ends
from ccagent.agents.lustre.jobstats.text_items import (
    BREAKS_OFF,
    CUT,
    ELSEWHERE,
    LACKS_ID,
    NOT_UNDERSTOOD,
    Problem,
    Target,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.lustre.jobstats.entry import JobstatsEntry
    from ccagent.agents.lustre.jobstats.entry_layout import EntryLayout

ENTRIES_BEFORE_LAYOUT = 64
"""Entries of a target to read line by line before a layout is built."""

_LONGEST_LINE = 4096
_LONGEST_TEXT = 1 << 20
_BLOCK = 65536
_SHOWN = 80
_ID, _OTHER = NUMBERS + 1, NUMBERS + 2

_STAT_STARTS = re.compile(rb"[ \t]*+[\w.]{1,64}+: *+\{ samples:[^{}]*+(?:\{[^{}]*+\}?+)?")
_HEADER = re.compile(rb"(mdt|obdfilter)\.([^\s=]{1,255}?)\.job_stats=(.*+)", re.DOTALL)
_BODY = b"job_stats:"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*+m")
# With shorter names, a whole fake entry would fit into a job id.
_PARAMETER = re.compile(rb"[A-Za-z][^\s={}]{3,}+=")
_WHOLE = (b"}", b"=", _BODY)
_FIRST_WORDS = (b"- job_id:", b"obdfilter.", b"mdt.", _BODY)


def parse(
    chunks: Iterable[bytes], target: str = "", kind: str = "", *, unused: bool = False
) -> Iterator[Target | JobstatsEntry | Problem]:
    """Parse text in pieces of any size, with constant memory. Yield its items in order.

    target, kind: the requested target; the text then has no other target. Without them, header
    lines name the targets, and text without header belongs to targets `unnamed-1`, `unnamed-2`...
    Other parameters are skipped. unused: also return operations without samples.
    """
    parser = _Parser(target, kind, unused=unused)
    rest = b""
    for chunk in normalize_line_ends(chunks):
        text = rest + chunk if rest else chunk
        end = parser.whole(text)
        if not end and len(text) > _LONGEST_TEXT:
            text += b"\n"  # job_stats has no such long lines
            end = len(text)
        yield from parser.feed(text, end)
        rest = text[end:]
    place = rest.rfind(b"\n") + 1
    last = rest[place:].strip()
    is_cut = last != b"" and not last.endswith(_WHOLE)
    starts_next = is_cut and any(word.startswith(last[: len(word)]) for word in _FIRST_WORDS)
    if rest:
        rest = rest[:place] if starts_next else rest + b"\n"
        yield from parser.feed(rest, len(rest))
    yield from parser.end(is_cut=is_cut, starts_next=starts_next)


class _Parser:
    """Reads whole entries once their layout is known, else single lines.

    draft: the current entry. waiting: entries of a target with an unknown shape. framing: a line
    that ends an entry, unless the next line shows that it is part of an id. held: the start of a
    line that a terminal has wrapped.
    """

    def __init__(self, target: str, kind: str, *, unused: bool) -> None:
        self._keeps_unused = unused
        self._given = Target(target, kind) if target else None
        self._target: Target | None = None
        self._awaits_body = False
        self._unnamed = 0
        self._line = 0
        self._draft: EntryDraft | None = None
        self._waiting: list[EntryDraft] = []
        self._framing = b""
        self._held = b""
        self._shape = TargetShape()
        self._layout: EntryLayout | None = None
        self._until_layout = ENTRIES_BEFORE_LAYOUT

    def whole(self, text: bytes) -> int:
        """Return how many bytes of a text to feed: whole entries with a layout, else lines."""
        if self._layout is not None:
            end = text.rfind(b"\n- job_id:", max(0, len(text) - _BLOCK)) + 1
            if end:
                return end
        return text.rfind(b"\n") + 1

    def feed(self, text: bytes, end: int) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse the lines of a text up to `end`, the position after a line break."""
        if b"\x1b" in text:
            text = _COLOUR.sub(b"", text[:end])
            end = len(text)
        position = 0
        while position < end:
            stop = end
            if self._layout is None:
                stop = text.find(b"\n", position + _BLOCK, end) + 1 or end
            else:
                if self._is_entry_next(text, position):
                    yield from self._finish()
                    position, number = yield from self._layout.take(text, position, end)
                    self._line += number * self._layout.lines
                stop = text.find(b"\n- job_id:", position, end) + 1 or end
            yield from self._read_lines(text, position, stop)
            position = stop

    def end(self, *, is_cut: bool, starts_next: bool) -> Iterator[Target | JobstatsEntry | Problem]:
        """Finish the text.

        is_cut: the last line is incomplete. starts_next: that line starts another entry or target,
        and was not fed.
        """
        if starts_next:
            yield from self._finish()
        if self._held:
            yield self._problem(self._held)
        if self._framing:
            yield from self._frame(self._framing)
        draft = self._draft
        if draft is not None and not self._shape.has(draft):
            if is_cut or self._shape.is_cut(draft):
                yield self._of_entry(draft, BREAKS_OFF)
        elif is_cut and self._target is not None:
            yield Problem(self._target.name, self._line, "", CUT, hides_entries=True)
        yield from self._end_entries()

    def _is_entry_next(self, text: bytes, position: int) -> bool:
        """Return whether an entry starts at a position and no earlier line is pending."""
        return (
            text.startswith(b"- job_id:", position)
            and self._target is not None
            and not self._held
            and not self._framing
        )

    def _read_lines(
        self, text: bytes, position: int, end: int
    ) -> Iterator[Target | JobstatsEntry | Problem]:
        for match in LINES.findall(text, position, end):
            if match[_OTHER]:
                self._line += 1
                yield from self._other(match[_OTHER])
            elif match[0] or match[_ID]:
                if self._held or self._framing:
                    yield from self._settle()
                self._line += 1
                if match[_ID]:
                    yield from self._start_entry(match[_ID][:-1])
                elif self._draft is not None:
                    self._draft.add(match[: NUMBERS + 1])
                elif self._target is not None:
                    shown = match[0] + b": " + match[1]
                    yield self._problem(shown, LACKS_ID, hides_entries=True)

    def _start_entry(self, raw_id: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        yield from self._finish()
        if self._target is None:
            yield self._start(self._given or self._next_unnamed())
        self._awaits_body = False
        self._draft = EntryDraft(raw_id, self._line)

    def _settle(self) -> Iterator[Target | JobstatsEntry | Problem]:
        """Decide about the pending line before, because the next line does not continue it."""
        if self._held:
            held, self._held = self._held, b""
            yield self._problem(held)
        if self._framing:
            yield from self._frame(self._framing)

    def _other(self, line: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse a line that is neither a job id nor an operation."""
        text = line.strip()
        if self._held and self._continue(line):
            return
        time = TIME.fullmatch(line)
        if self._framing and time is not None and time[1] == b"snapshot":
            # The entry continues: its id has a line break and imitates a parameter.
            framing, self._framing = self._framing, b""
            if self._draft is not None:
                self._draft.is_broken = True
            yield self._problem(framing, ELSEWHERE)
        if self._held or self._framing:
            yield from self._settle()
        draft = self._draft
        if not text:
            return
        if time is not None:
            if draft is None or not draft.add_time(time):
                yield from self._damage(line)
        elif text == _BODY or _HEADER.fullmatch(text) or _PARAMETER.match(text):
            yield from self._check_framing(text)
        elif draft is not None and _STAT_STARTS.fullmatch(line.rstrip(b"\r\n")):
            self._held = line.rstrip(b"\r\n")  # a terminal has wrapped it
        else:
            yield from self._damage(line)

    def _damage(self, line: bytes) -> Iterator[Problem]:
        """Report a line, unless it belongs to another parameter."""
        if (self._target or self._given) is not None:
            yield self._problem(line)

    def _check_framing(self, text: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse a line that starts a target or another parameter, or imitates one."""
        header = _HEADER.fullmatch(text)
        target = _add_name(header) if header is not None else None
        is_started = self._draft is not None or (self._target is not None and not self._awaits_body)
        if header is not None and _HEADER.match(header[3]):
            yield self._problem(text)
        elif (
            header is not None
            and header[3] not in {b"", _BODY}
            and target in {self._target, self._given}
        ):
            # `lctl get_param -H` prints the parameter name before each line.
            yield from self._frame(text)
        elif self._given is not None:
            is_own = text == _BODY or target == self._given
            if is_started or not is_own:
                yield self._problem(text, ELSEWHERE)
            elif self._target is None:
                yield self._start(self._given)
        elif self._draft is None:
            yield from self._frame(text)
        elif self._draft.is_bare:
            yield self._problem(text, ELSEWHERE)
        else:
            self._framing = text

    def _frame(self, text: bytes) -> Iterator[Target | JobstatsEntry | Problem]:
        """Parse a line that really starts a target or another parameter."""
        self._framing = b""
        header = _HEADER.fullmatch(text)
        if header is None:
            if text == _BODY and self._awaits_body:
                self._awaits_body = False
                return
            yield from self._end_entries()
            self._target = None
            if text == _BODY:
                yield self._start(self._next_unnamed())
            return
        target, rest = _add_name(header), header[3]
        is_body = rest not in {b"", _BODY}
        if target != self._target or not is_body:
            yield from self._end_entries()
            yield self._start(target)
            self._awaits_body = not rest
        if is_body:
            line = self._line
            yield from self._read_lines(rest + b"\n", 0, len(rest) + 1)
            self._line = line

    def _continue(self, line: bytes) -> bool:
        """Join a line with the wrapped line before it. Return False if they don't fit."""
        joined = self._held + line
        text = joined.rstrip(b"\r\n")
        match = STAT.fullmatch(joined)
        if match is not None and self._draft is not None:
            self._draft.add(match.groups(b""))
            self._held = b""
        elif len(text) < _LONGEST_LINE and _STAT_STARTS.fullmatch(text):
            self._held = text
        else:
            return False
        return True

    def _start(self, target: Target) -> Target:
        self._target = target
        self._awaits_body = False
        self._shape = TargetShape()
        self._layout = None
        self._until_layout = ENTRIES_BEFORE_LAYOUT
        return target

    def _next_unnamed(self) -> Target:
        self._unnamed += 1
        return Target(f"unnamed-{self._unnamed}", "")

    def _finish(self) -> Iterator[JobstatsEntry | Problem]:
        """End the current entry. It is held until the shape of the target is known."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if not self._shape.is_open:
            yield from self._check(draft)
            return
        self._waiting.append(draft)
        if self._shape.learn(draft):
            yield from self._check_waiting()

    def _end_entries(self) -> Iterator[JobstatsEntry | Problem]:
        yield from self._finish()
        yield from self._check_waiting()

    def _check_waiting(self) -> Iterator[JobstatsEntry | Problem]:
        waiting, self._waiting = self._waiting, []
        for draft in waiting:
            yield from self._check(draft)

    def _check(self, draft: EntryDraft) -> Iterator[JobstatsEntry | Problem]:
        """Yield an entry and its problems."""
        shape = self._shape
        if not draft.is_broken and shape.cut_off_others(draft):
            yield Problem(self._name, draft.line, draft.job_id, LACKS_ID, hides_entries=True)
        reason = shape.fault_of(draft)
        if reason:
            yield self._of_entry(draft, reason)
        yield draft.entry(keeps_unused=self._keeps_unused)
        self._until_layout -= 1
        if self._until_layout <= 0 and shape.usual is not None and not self._keeps_unused:
            self._layout = entry_layout(shape.usual)

    def _problem(
        self, line: bytes, reason: str = NOT_UNDERSTOOD, *, hides_entries: bool = False
    ) -> Problem:
        if self._draft is not None:
            self._draft.damage()
        shown = canonical(line.strip()[:_SHOWN], is_escaped=False)
        return Problem(self._name, self._line, shown, reason, hides_entries)

    def _of_entry(self, draft: EntryDraft, reason: str) -> Problem:
        """Mark an entry as broken and return the problem."""
        draft.is_broken = True
        return Problem(self._name, draft.line, draft.job_id, reason, reason == BREAKS_OFF)

    @property
    def _name(self) -> str:
        target = self._target or self._given
        return target.name if target is not None else ""


def _add_name(header: re.Match[bytes]) -> Target:
    kind, name = (part.decode("utf-8", "backslashreplace") for part in header.group(1, 2))
    return Target(name, kind)
