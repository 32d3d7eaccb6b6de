"""A private file of records, each on disk before `append` returns.

A line has a checksum, a space and a record in JSON. A damaged line does not affect the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private, replace_file, sync_directory, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable


_LARGEST = 256 * 1024 * 1024
_LONG = 16 * 1024 * 1024

T = TypeVar("T")


class JournalFile(Generic[T]):
    """A file of records of one type. One thread at a time may use it.

    Methods raise OSError or NotPermittedError.
    """

    def __init__(self, path: str, kind: type[T]) -> None:
        self._path = path
        self._kind = kind
        self._descriptor = -1
        self._records = self._added = 0

    def load(self) -> list[T]:
        """Return the records. A file with damaged lines is copied to PATH.damaged first."""
        content = read_journal(self._path)
        records, damaged = parse_journal(content, self._kind)
        if damaged:
            copy = f"{self._path}.damaged"
            logger.error("%s: %d damaged lines are skipped; copy: %s", self._path, damaged, copy)
            replace_file(copy, content)
        return records

    def append(self, record: T) -> None:
        """Add a record; it is on disk at the return. The file must have been rewritten once."""
        line = format_line(msgspec.json.encode(record))
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            write_all(self._descriptor, line)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, end)  # a partial line would damage the next one
            raise
        self._records += 1
        self._added += len(line)

    def rewrite(self, records: Iterable[T]) -> None:
        """Replace the file by one with these records, atomically."""
        self.close()
        lines = [format_line(msgspec.json.encode(record)) for record in records]
        replace_file(self._path, b"".join(lines))
        sync_directory(os.path.dirname(self._path))
        self._descriptor = open_private(self._path, os.O_RDWR)
        self._records, self._added = len(lines), 0

    def is_due(self, most: int) -> bool:
        """Return whether to rewrite the file: it has more than `most` records, or is not open."""
        return self._descriptor < 0 or self._records > most or self._added > _LONG

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def parse_journal(content: bytes, kind: type[T]) -> tuple[list[T], int]:
    """Return the records of a file's content, and the number of damaged lines.

    A last line without line break was not confirmed, and does not count.
    """
    decoder = msgspec.json.Decoder(kind)
    records: list[T] = []
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for line in lines:
        checksum, _, record = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(record):
            with contextlib.suppress(msgspec.MsgspecError):
                records.append(decoder.decode(record))
    return records, len(lines) - len(records)


def read_journal(path: str) -> bytes:
    """Return the content of a journal; nothing without a file."""
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        return b""


def format_line(record: bytes) -> bytes:
    """Return a line: checksum, space, record."""
    return b"%08x %b\n" % (zlib.crc32(record), record)


def explain(error: OSError | NotPermittedError) -> str:
    """Return an error as text, with the file if it is known."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)


LARGEST = 4 * 1024 * 1024
"""Maximum bytes of the file. Above, it is renamed to NAME.1 and replaces the old one."""


class AuditFile:
    """Appends lines. A write error is logged once, and does not stop the service."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_failing = False
        self._lock = threading.Lock()

    def append(self, line: bytes) -> None:
        """Append a line with its line break."""
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
        if os.fstat(descriptor).st_size + more <= LARGEST:
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
