"""The journal of changes to restore, on disk before a change of the machine.

The file has lines with a checksum and a JSON record. An incomplete or damaged line does not affect
the other lines. A new record is on disk (fdatasync) before `add` returns.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import ControlError, NotPermittedError
from ccagent.log import logger
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = "changes.journal"

_LARGEST = 64 * 1024 * 1024
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


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    op: Literal["set", "end"]
    change: Change | None = None
    number: int = 0


_decoder = msgspec.json.Decoder(_Record)


class Journal:
    """The journal's file. Raise ControlError if it can't be read or written. Not thread-safe."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE)
        self._directory = directory
        try:
            make_directory(directory)
            content = self._read()
        except (OSError, NotPermittedError) as error:
            raise ControlError(f"state-directory: {_reason(error)}") from error
        self.changes = parse_journal(content, self._path)
        self._keep_damaged(content)
        self._last = max(self.changes, default=0)
        self._descriptor = -1
        self._records = 0
        self._compact()

    def add(self, change: Change) -> None:
        """Store a change, and replace the one with the same number. It is on disk at the return."""
        self._append(_Record("set", change))
        self.changes[change.number] = change

    def end(self, number: int) -> None:
        """Store that a change need not be restored any more."""
        self._append(_Record("end", None, number))
        self.changes.pop(number, None)
        if self._records > _MOST_RECORDS:
            self._compact()

    def next_number(self) -> int:
        """Return a number that this process has not used yet."""
        self._last += 1
        return self._last

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bytes:
        try:
            with open(open_private(self._path, os.O_RDONLY), "rb") as file:
                return file.read(_LARGEST)
        except FileNotFoundError:
            return b""

    def _keep_damaged(self, content: bytes) -> None:
        """Copy a file with a damaged line: a value may have to be restored by hand.

        A crash may leave a line without line break, before the machine was changed.
        """
        whole = content[: content.rfind(b"\n") + 1]
        if all(_parse_line(line) is not None for line in whole.splitlines()):
            return
        path = f"{self._path}.damaged"
        try:
            replace_file(path, content)
        except (OSError, NotPermittedError) as error:
            logger.error("%s: no copy of the damaged file: %s", path, _reason(error))
        else:
            logger.error("%s: damaged; values may have to be put back by hand: see %s",
                         self._path, path)  # fmt: skip

    def _append(self, record: _Record) -> None:
        if self._descriptor < 0:
            self._compact()
        line = format_line(msgspec.json.encode(record))
        try:
            end = os.lseek(self._descriptor, 0, os.SEEK_END)
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._descriptor, view) :]
                os.fdatasync(self._descriptor)
            except OSError:
                # A partial line would damage the next one.
                os.ftruncate(self._descriptor, end)
                raise
        except OSError as error:
            raise ControlError(f"{self._path}: {error.strerror}; nothing was set") from error
        self._records += 1

    def _compact(self) -> None:
        """Rewrite the file atomically with the changes in effect."""
        self.close()
        records = (_Record("set", change) for change in self.changes.values())
        content = b"".join(format_line(msgspec.json.encode(record)) for record in records)
        try:
            replace_file(self._path, content)
            _sync_directory(self._directory)
            self._descriptor = open_private(self._path, os.O_RDWR)
        except (OSError, NotPermittedError) as error:
            raise ControlError(f"state-directory: {_reason(error)}") from error
        self._records = len(self.changes)


def parse_journal(content: bytes, path: str = FILE) -> dict[int, Change]:
    """Return the changes in effect, by number, oldest first. Damaged lines are logged."""
    found: dict[int, Change] = {}
    damaged = 0
    for line in content.splitlines():
        record = _parse_line(line)
        if record is None:
            damaged += 1
        elif record.op == "end":
            found.pop(record.number, None)
        elif record.change is not None:
            found[record.change.number] = record.change
    if damaged:
        logger.warning("%s: %d damaged lines are skipped", path, damaged)
    return found


def read_changes(directory: str) -> list[Change]:
    """Return the changes in effect, read-only. Raise OSError or NotPermittedError."""
    path = os.path.join(directory, FILE)
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            return list(parse_journal(file.read(_LARGEST), path).values())
    except FileNotFoundError:
        return []


def format_line(record: bytes) -> bytes:
    """Return a line: checksum, space, record."""
    return b"%08x %b\n" % (zlib.crc32(record), record)


def _parse_line(line: bytes) -> _Record | None:
    checksum, _, record = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(record):
        return None
    try:
        return _decoder.decode(record)
    except msgspec.MsgspecError:
        return None


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_first(changes: Iterable[Change]) -> list[Change]:
    """Return changes in the order of their restore."""
    return sorted(changes, key=lambda change: change.number, reverse=True)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)
