"""The audit: one line of JSON, and a log line, for each change, refusal and restore."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import NotPermittedError
from ccagent.log import logger, say
from ccagent.machine.clock import timestamp
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "audit.jsonl"
_LARGEST = 4 * 1024 * 1024
"""Maximum bytes of the file. Above, it is renamed to audit.jsonl.1 and replaces the old one."""

Action = Literal[
    "set", "kept", "renewed", "refused", "failed", "dry-run", "restored", "reset", "restore-failed"
]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. by: the sender of the request, or ccagent's reason."""

    time: str
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
        self._path = os.path.join(directory, FILE)
        self._clock = clock
        self._on_entry = on_entry
        self._is_failing = False
        self._lock = threading.Lock()

    def add(
        self,
        action: Action,
        control: str,
        *,
        by: str,
        device: str = "",
        before: str = "",
        requested: str = "",
        after: str = "",
        reason: str = "",
        job: int = 0,
        lease: float = 0.0,
        key: str = "",
    ) -> None:
        """Add an entry. key: log only one line per hour with this key; the file gets all."""
        entry = Entry(
            time=timestamp(self._clock()),
            action=action,
            control=control,
            device=device,
            before=before,
            requested=requested,
            after=after,
            by=by,
            reason=reason,
            job=job,
            lease=lease,
        )
        say(f"control {describe(entry)}", key)
        self._write(msgspec.json.encode(entry) + b"\n")
        self._on_entry(entry)

    def _write(self, line: bytes) -> None:
        try:
            make_directory(os.path.dirname(self._path))
            with self._lock, open(self._open(len(line)), "r+b", buffering=0) as file:
                _append(file.fileno(), line)
        except (OSError, NotPermittedError) as error:
            if not self._is_failing:
                logger.error("audit: %s: %s; changes are in the log only", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _open(self, more: int) -> int:
        """Open the file. If `more` bytes would make it too large, rename the old file first."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = open_private(self._path, flags)
        if os.fstat(descriptor).st_size + more <= _LARGEST:
            return descriptor
        os.close(descriptor)
        os.replace(self._path, f"{self._path}.1")
        return open_private(self._path, flags)


def _append(descriptor: int, line: bytes) -> None:
    """Append a line, on a new line after a line that a full disk has cut. Raise OSError."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_audit(directory: str, last: int) -> list[Entry]:
    """Return the last entries, oldest first. Lines cut by a crash are skipped.

    Raise OSError or NotPermittedError.
    """
    path = os.path.join(directory, FILE)
    found: list[Entry] = []
    for each in (f"{path}.1", path):
        with (
            contextlib.suppress(FileNotFoundError),
            open(open_private(each, os.O_RDONLY), "rb") as file,
        ):
            found += _parse(file.read(2 * _LARGEST))
    return found[-last:] if last else found


def _parse(content: bytes) -> list[Entry]:
    found: list[Entry] = []
    for line in content.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Entry))
    return found


def describe(entry: Entry) -> str:
    """Return an entry as a phrase for the log and the terminal."""
    place = f"{entry.control}@{entry.device}" if entry.device else entry.control
    values = entry.requested
    if entry.action in {"restored", "reset", "restore-failed"}:
        values = f"{entry.after or entry.requested} -> {entry.before}"
    elif entry.before:
        values = f"{entry.before} -> {entry.after or entry.requested}"
    text = f"{entry.action}: {place} {values}".rstrip()
    text += f", by {entry.by}"
    if entry.job:
        text += f", job {entry.job}"
    if entry.lease:
        text += f", lease {entry.lease:g} s"
    return f"{text}: {entry.reason}" if entry.reason else text
