"""The audit: one line of JSON, and a log line, for each change, refusal and restore."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.log import say
from ccagent.machine.clock import timestamp
from ccagent.service.journal_file import AuditFile, read_journal

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "audit.jsonl"

Action = Literal[
    "set", "kept", "renewed", "refused", "failed", "dry-run", "restored", "reset", "restore-failed"
]


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
        self._file = AuditFile(os.path.join(directory, FILE))
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
    path = os.path.join(directory, FILE)
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
