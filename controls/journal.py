"""The journal of changes to restore, on disk before a change of the machine."""

from __future__ import annotations

import os
import threading
from typing import Literal

import msgspec

from ccagent.errors import ControlError, NotPermittedError
from ccagent.service.journal_file import JournalFile, explain, parse_journal, read_journal
from ccagent.service.private_directories import make_directory

FILE = "changes.journal"

_MOST_RECORDS = 4096
"""Number of records after which the file is rewritten with the changes in effect."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A set value, and the old value.

    after: value read back from the machine; None until the write is confirmed. expires: seconds
    since boot, 0 for never. boot: the kernel's boot id. job: the job that owned the node, or 0.
    """

    number: int
    control: str
    device: str
    resource: str
    before: str
    requested: str
    after: str | None = None
    sender: str
    time: float
    boot: str
    expires: float = 0.0
    job: int = 0


class ChangeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file: a change in effect, or the end of one."""

    op: Literal["set", "end"]
    change: Change | None = None
    number: int = 0


class Journal:
    """The journal's file. Raise ControlError if it can't be read or written. Thread-safe."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE)
        self._file = JournalFile(self._path, ChangeRecord)
        self._lock = threading.Lock()
        try:
            make_directory(directory)
            self._changes = find_changes(self._file.load())
        except (OSError, NotPermittedError) as error:
            raise ControlError(f"state-directory: {explain(error)}") from error
        self._last = max(self._changes, default=0)
        self._compact()

    def all(self) -> list[Change]:
        """Return the changes in effect, oldest first."""
        return list(self._changes.values())

    def find(self, number: int) -> Change | None:
        """Return the change with a number, if it is in effect."""
        return self._changes.get(number)

    def add(self, change: Change) -> None:
        """Store a change, and replace the one with the same number. It is on disk at the return."""
        with self._lock:
            self._append(ChangeRecord("set", change))
            self._changes[change.number] = change

    def end(self, number: int) -> None:
        """Store that a change need not be restored any more."""
        with self._lock:
            self._append(ChangeRecord("end", None, number))
            self._changes.pop(number, None)

    def next_number(self) -> int:
        """Return a number that this process has not used yet."""
        with self._lock:
            self._last += 1
            return self._last

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, record: ChangeRecord) -> None:
        if self._file.is_due(_MOST_RECORDS):
            self._compact()
        try:
            self._file.append(record)
        except OSError as error:
            raise ControlError(f"{self._path}: {error.strerror}; nothing was set") from error

    def _compact(self) -> None:
        """Rewrite the file with the changes in effect."""
        try:
            self._file.rewrite(ChangeRecord("set", change) for change in self._changes.values())
        except (OSError, NotPermittedError) as error:
            raise ControlError(f"state-directory: {explain(error)}") from error


def find_changes(records: list[ChangeRecord]) -> dict[int, Change]:
    """Return the changes in effect, by number, oldest first."""
    changes: dict[int, Change] = {}
    for record in records:
        if record.op == "end":
            changes.pop(record.number, None)
        elif record.change is not None:
            changes[record.change.number] = record.change
    return changes


def read_changes(directory: str) -> list[Change]:
    """Return the changes in effect, read-only. Raise OSError or NotPermittedError."""
    content = read_journal(os.path.join(directory, FILE))
    return list(find_changes(parse_journal(content, ChangeRecord)[0]).values())
