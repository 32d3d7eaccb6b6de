"""The journal of changes to restore, on disk before a change of the machine, and the audit.

The audit is one line of JSON, and a log line, for each change, refusal and restore.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import ControlError, NotPermittedError
from ccagent.log import say
from ccagent.machine.clock import timestamp
from ccagent.service.journal_file import (
    AuditFile,
    JournalFile,
    explain,
    parse_journal,
    read_journal,
)
from ccagent.service.private_directories import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable

JOURNAL_FILE = "changes.journal"
AUDIT_FILE = "audit.jsonl"

_MOST_RECORDS = 4096
"""Number of records after which the file is rewritten with the changes in effect."""

Action = Literal[
    "set", "kept", "renewed", "refused", "failed", "dry-run", "restored", "reset", "restore-failed"
]


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
        self._path = os.path.join(directory, JOURNAL_FILE)
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
    content = read_journal(os.path.join(directory, JOURNAL_FILE))
    return list(find_changes(parse_journal(content, ChangeRecord)[0]).values())


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. by: the sender of the request, or ccagent's reason."""

    time: str = ""
    action: Action
    control: str
    device: str = ""
    before: str = ""
    requested: str = ""
    after: str = ""
    by: str
    reason: str = ""
    job: int = 0
    lease: float = 0.0


class Audit:
    """Appends to the file and the log. A write error is logged, and does not stop the service.

    on_entry also gets each entry, for the event message.
    """

    def __init__(
        self, directory: str, clock: Callable[[], float], on_entry: Callable[[Entry], None]
    ) -> None:
        self._file = AuditFile(os.path.join(directory, AUDIT_FILE))
        self._clock = clock
        self._on_entry = on_entry

    def add(self, entry: Entry, key: str = "") -> None:
        """Add an entry with the current time.

        key: log only one line per hour with this key; the file gets all.
        """
        entry = msgspec.structs.replace(entry, time=timestamp(self._clock()))
        say(f"control {describe(entry)}", key)
        self._file.append(msgspec.json.encode(entry) + b"\n")
        self._on_entry(entry)


def read_audit(directory: str, last: int) -> list[Entry]:
    """Return the last entries, oldest first. Lines cut by a crash are skipped.

    Raise OSError or NotPermittedError.
    """
    path = os.path.join(directory, AUDIT_FILE)
    entries: list[Entry] = []
    for line in b"\n".join(map(read_journal, (f"{path}.1", path))).splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            entries.append(msgspec.json.decode(line, type=Entry))
    return entries[-last:]


def describe(entry: Entry) -> str:
    """Return an entry as a phrase for the log and the terminal."""
    name = f"{entry.control}@{entry.device}" if entry.device else entry.control
    values = entry.requested
    if entry.action in {"restored", "reset", "restore-failed"}:
        values = f"{entry.after or entry.requested} -> {entry.before}"
    elif entry.before:
        values = f"{entry.before} -> {entry.after or entry.requested}"
    text = f"{entry.action}: {name} {values}".rstrip()
    text += f", by {entry.by}"
    if entry.job:
        text += f", job {entry.job}"
    if entry.lease:
        text += f", lease {entry.lease:g} s"
    return f"{text}: {entry.reason}" if entry.reason else text
