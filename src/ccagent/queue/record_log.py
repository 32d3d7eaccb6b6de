"""Files of records that are only appended to: the format, its reader, and its writer.

A record is a marker, the length of its payload, a CRC-32, the payload, and a trailer. The trailer
is not part of the checksum, so it can be overwritten in place. All numbers are little endian. The
CRC-32 is zlib's: 1.5 us for 2 KB; Python has no CRC-32C, and BLAKE2 takes 3.7 us.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotPermittedError
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MARKER = b"qn\xca]"
"""The first bytes of a record. They are not valid UTF-8, so no text in a payload contains them."""

_MARKERS = re.compile(re.escape(MARKER))
_FRAME = struct.Struct("<4sII")

FILE_ERRORS = (OSError, NotPermittedError)


def describe_error(error: Exception, path: str = "") -> str:
    """Return the reason of a failed access to a file, without its path."""
    return getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ")


class LogRecord(NamedTuple):
    """An undamaged record. offset: of its marker in the file; trailer: offset of its trailer."""

    offset: int
    trailer: int
    payload: memoryview


class DamagedPart(NamedTuple):
    """Bytes of a file that are not a valid record."""

    offset: int
    size: int


def frame(payload: bytes, *, seed: int = 0, trailer: bytes = b"") -> bytes:
    """Return a record. seed: initial value of the checksum; readers must know it."""
    head = _FRAME.pack(MARKER, len(payload), zlib.crc32(payload, seed))
    return b"".join((head, payload, trailer))


def read_record(data: memoryview, offset: int, seed: int = 0) -> LogRecord | None:
    """Return the record at an offset; None if there is none or if it is damaged."""
    begin = offset + _FRAME.size
    if begin > len(data):
        return None
    marker, size, checksum = _FRAME.unpack_from(data, offset)
    if marker != MARKER or not 0 < size <= len(data) - begin:
        return None
    trailer = begin + size
    payload = data[begin:trailer]
    return LogRecord(offset, trailer, payload) if zlib.crc32(payload, seed) == checksum else None


def read_records(
    data: memoryview, offset: int = 0, *, seed: int = 0, trailer: int = 0
) -> Iterator[LogRecord | DamagedPart]:
    """Yield the records and the damaged parts from an offset to the end.

    trailer: bytes of each trailer. After a damaged part the next record is found by its marker and
    checksum.
    """
    while offset < len(data):
        record = read_record(data, offset, seed)
        if record is not None:
            yield record
            offset = record.trailer + trailer
            continue
        markers = (match.start() for match in _MARKERS.finditer(data, offset + 1))
        following = next((each for each in markers if read_record(data, each, seed)), len(data))
        yield DamagedPart(offset, following - offset)
        offset = following


@contextlib.contextmanager
def create_file(path: str) -> Generator[LogFile]:
    """Create a file that is complete or absent: it is deleted if the body fails.

    Raise OSError, FileExistsError or NotPermittedError.
    """
    file = LogFile(path, open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        file.close()
        raise


class LogFile:
    """A file of records. descriptor: -1 while it is closed. size: bytes up to the last record."""

    def __init__(self, path: str, descriptor: int = -1, size: int = 0) -> None:
        self.path = path
        self.descriptor = descriptor
        self.is_open = descriptor >= 0
        self.size = size

    def append(self, records: bytes, *, is_synced: bool = False) -> None:
        """Write records at the end, and wait for the disk if `is_synced`.

        On failure remove the records, also incomplete ones, and raise OSError.
        """
        written = 0
        try:
            while written < len(records):
                rest = memoryview(records)[written:] if written else records
                written += os.pwrite(self.descriptor, rest, self.size + written)
            if is_synced:
                self.sync()
        except OSError:
            self.truncate()
            raise
        self.size += written

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raise OSError."""
        return os.pread(self.descriptor, size, offset)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Write bytes before the end. Raise OSError."""
        os.pwrite(self.descriptor, data, offset)

    def allocate(self, room: int) -> None:
        """Allocate bytes of the file. Without room or support they are allocated when written."""
        try:
            os.posix_fallocate(self.descriptor, 0, room)
        except OSError:
            self.truncate()  # ext4 keeps what it had allocated

    def truncate(self) -> None:
        """Free the space behind the last record, if possible."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, self.size)

    def sync(self) -> None:
        """Wait until the records are on the disk. Raise OSError."""
        os.fdatasync(self.descriptor)

    def is_current(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def is_removed(self) -> bool:
        """Return whether somebody has deleted this file."""
        try:
            return not os.fstat(self.descriptor).st_nlink
        except OSError:
            return True

    def __del__(self) -> None:
        """Unlock a file that nobody closed."""
        with contextlib.suppress(OSError):
            self.close()

    def close(self) -> None:
        """Close the file. Raise OSError if the system reports a failed write."""
        descriptor, self.descriptor, self.is_open = self.descriptor, -1, False
        if descriptor >= 0:
            os.close(descriptor)
