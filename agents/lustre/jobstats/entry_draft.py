"""Entries read line by line, and the common shape of the entries of a target."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry
from ccagent.agents.lustre.jobstats.entry_id import canonical
from ccagent.agents.lustre.jobstats.entry_layout import Shape, is_escaped
from ccagent.agents.lustre.jobstats.text_items import CONTRADICTS, LACKS_LINES, LACKS_TIME

if TYPE_CHECKING:
    import re

MOST_OPERATIONS = 256
_NEEDED = 3
_MOST_WAITING = 16
_ALWAYS = (
    frozenset({b"setattr", b"punch", b"sync"}),
    frozenset({b"mknod", b"link", b"rmdir", b"samedir_rename"}),
)
"""Operations that every version prints for OSTs and MDTs. Few jobs have done all of them."""


class EntryDraft:
    """The lines of an entry so far.

    is_suspect: a line near the entry is damaged; the entry counts only if it is complete.
    is_broken: the entry does not count.
    """

    def __init__(self, raw_id: bytes, line: int) -> None:
        self.line = line
        self.is_suspect = False
        self.is_broken = False
        self.lines: list[tuple[bytes, ...]] = []
        self._raw_id = raw_id
        self._snapshot = b""
        self._start = b""
        self._since_boot = False

    @property
    def is_bare(self) -> bool:
        """True while only the job id is known."""
        return not self._snapshot and not self.lines

    @property
    def job_id(self) -> str:
        """The canonical id."""
        escaped = is_escaped(self._snapshot, since_boot=self._since_boot)
        return canonical(self._raw_id, is_escaped=escaped)

    @property
    def shape(self) -> Shape:
        """The shape of the entry, common to entries of a target."""
        return Shape(self._start != b"", tuple([line[0] for line in self.lines]))

    @property
    def has_snapshot(self) -> bool:
        """False if the line with the time of the last operation is missing."""
        return self._snapshot != b""

    def add(self, line: tuple[bytes, ...]) -> None:
        """Add the line of an operation."""
        if len(self.lines) <= MOST_OPERATIONS:
            self.lines.append(line)
        else:
            self.is_broken = True

    def add_time(self, time: re.Match[bytes]) -> bool:
        """Add a time; return False if it can't belong to this entry."""
        seconds = time[3]
        if time[1] == b"elapsed":
            return True
        if time[1] == b"start":
            known, self._start = self._start, self._start or seconds
        else:
            known, self._snapshot = self._snapshot, self._snapshot or seconds
            self._since_boot = time[2] != b"" if not known else self._since_boot
        if known in {b"", seconds}:
            return True
        if self.lines:
            self.is_suspect = True  # the time of an entry with a damaged job id
        else:
            self.is_broken = True
        return False

    def damage(self) -> None:
        """Note an unparsable line. Before the first time it belongs to the id."""
        self.is_suspect = True
        if self.is_bare:
            self.is_broken = True

    def contradicts_itself(self) -> bool:
        """Return whether an operation has two different lines."""
        return len(set(self.lines)) != len({line[0] for line in self.lines})

    def entry(self, *, keeps_unused: bool) -> JobstatsEntry:
        """Return the entry, with unused operations if `keeps_unused`."""
        lines = self.lines
        if self.is_broken:
            lines = []
        elif not keeps_unused:
            lines = [line for line in lines if line[1].lstrip(b"0")]
        return JobstatsEntry(
            self.job_id, self._snapshot, self._start, self._since_boot, lines, self.is_broken
        )


class TargetShape:
    """The common shape of the entries of a target, known after enough entries.

    If operations without samples are missing (filtered by grep), entries differ and can't be
    checked. is_whole: the usual shape has the operations that every version prints.
    """

    def __init__(self) -> None:
        self.usual: Shape | None = None
        self.is_whole = False
        self.is_open = True
        self._seen: Counter[Shape] = Counter()
        self._number = 0

    def learn(self, draft: EntryDraft) -> bool:
        """Learn from an entry. If the shape is decided, clear `is_open` and return True."""
        self._number += 1
        if not (draft.is_broken or draft.is_suspect or not draft.has_snapshot):
            shape = draft.shape
            self._seen[shape] += 1
            if self._seen[shape] >= _NEEDED and shape.operations:
                self.usual = shape
                self.is_whole = _is_whole(shape)
        self.is_open = self.usual is None and self._number < _MOST_WAITING
        return not self.is_open

    def has(self, draft: EntryDraft) -> bool:
        """Return whether an entry is complete."""
        return self.usual is not None and draft.shape == self.usual

    def fault_of(self, draft: EntryDraft) -> str:
        """Return why an entry does not count; empty if it counts or was already reported.

        A suspect entry becomes broken if its shape can't be checked.
        """
        if draft.is_broken:
            return ""
        if not draft.has_snapshot:
            return LACKS_TIME
        if self.has(draft):
            return ""
        if self.is_whole:
            return LACKS_LINES
        if draft.contradicts_itself():
            return CONTRADICTS
        draft.is_broken = draft.is_suspect
        return ""

    def cut_off_others(self, draft: EntryDraft) -> bool:
        """Remove the lines after a complete entry: they are of an entry with a damaged job id."""
        usual, own = self.usual, draft.shape
        if usual is None or not self.is_whole or own.has_start != usual.has_start:
            return False
        number = len(usual.operations)
        if len(own.operations) <= number or own.operations[:number] != usual.operations:
            return False
        del draft.lines[number:]
        return True

    def is_cut(self, draft: EntryDraft) -> bool:
        """Return whether an entry is the beginning of the shape of other entries."""
        if draft.shape in self._seen:
            return False
        own = draft.shape.operations
        return any(
            len(own) < len(other.operations)
            and other.operations[: len(own)] == own
            and _is_whole(other)
            for other in self._seen
        )


def _is_whole(shape: Shape) -> bool:
    names = frozenset(shape.operations)
    return any(each <= names for each in _ALWAYS)
