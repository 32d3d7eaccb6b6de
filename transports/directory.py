"""The transport `dir:PATH`. It appends messages to a tree of files for Jobanalyzer.

    PATH/yyyy/mm/dd/0+sample-HOST.json      one envelope a line; the date is that of UTC
                    0+sysinfo-HOST.json
                    0+job-slurm.json
                    0+cluzter-slurm.json    (the spelling is the readers')
                    metrics-HOST.line       line protocol

A line is written atomically by any number of writers. They lock the file during a write, and remove
a line that a full disk has cut off. The lock (F_OFD_SETLK) needs write permission, so a reader
can't stall the writers.

No symbolic link of another user is followed, also not in place of a date directory. Directories
have mode 755 and files 644, independent of the umask.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from ccagent.errors import ConfigurationError, NotPermittedError, RetryableError
from ccagent.log import logger
from ccagent.service.private_directories import open_directory, open_made_directory
from ccagent.service.private_files import open_private, open_private_at, write_all
from ccagent.transports.base import ProbeResult, SinkSettings, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message


_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""struct flock (fcntl(2)) for an exclusive lock of a whole file."""

_WITHOUT_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of file systems without locks, such as Lustre mounted with `noflock`."""

_LONGEST_LOCK = 10.0
_LOCK_PAUSE = 0.002
_LONGEST_FRAGMENT = 64 * 1024 * 1024


class DirectorySettings(SinkSettings, frozen=True, kw_only=True):
    """Keys of a sink `dir:`."""

    fsync: Annotated[
        bool, Meta(description="wait for the disk after each message (survives power loss)")
    ] = False


class DirectoryTransport(Transport):
    """Appends whole lines to `PATH/yyyy/mm/dd/0+TYPE-HOST.json`; several writers are allowed."""

    Settings = DirectorySettings
    is_network = False

    def __init__(self, settings: DirectorySettings) -> None:
        self._directory = settings.url.partition(":")[2].removeprefix("//")
        if not self._directory.startswith("/"):
            raise ConfigurationError(f"{settings.url}: an absolute path is needed: dir:/PATH")
        self._fsync = settings.fsync

    def send(self, messages: Sequence[Message]) -> None:
        """Append messages. Raise RetryableError for every error of the file system."""
        for number, message in enumerate(messages):
            path = os.path.join(self._directory, build_path(message))
            body = message.body if message.body.endswith(b"\n") else message.body + b"\n"
            try:
                self._append(path, body)
            except NotPermittedError as error:
                raise RetryableError(str(error), delivered=number) from error
            except OSError as error:
                reason = error.strerror or str(error)
                raise RetryableError(f"{path}: {reason}", delivered=number) from error
            self.answer = f"appended to {path}"

    def probe(self, message: Message) -> ProbeResult:
        """Check that the file can be written or created. Raise RetryableError if not."""
        file = path = os.path.join(self._directory, build_path(message))
        while not os.path.lexists(path) and path != "/":
            path = str(os.path.dirname(path))
        try:
            opened = open_private(path, os.O_WRONLY) if path == file else open_directory(path)
            os.close(opened)
        except NotPermittedError as error:
            raise RetryableError(str(error)) from error
        except OSError as error:
            raise RetryableError(f"{path}: {error.strerror}") from error
        if not os.access(path, os.W_OK):
            raise RetryableError(f"{path}: {os.strerror(errno.EACCES)}")
        return ProbeResult(f"{path} can be written")

    def _append(self, path: str, lines: bytes) -> None:
        """Append lines, or restore the file after an error. Raise OSError, NotPermittedError."""
        descriptor = _open(path)
        try:
            _lock(descriptor, path)
            size = _cut_fragment(descriptor, path)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            try:
                write_all(descriptor, lines)
                if self._fsync:
                    os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _open(path: str) -> int:
    """Open a file for appending. Create it and its directories. Raise as `open_private` does."""
    directory = open_made_directory(os.path.dirname(path))
    try:
        return open_private_at(directory, path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    finally:
        os.close(directory)


def _lock(descriptor: int, path: str) -> None:
    """Lock a file for writing, if the file system supports locks.

    Raise OSError, such as TimeoutError if another process holds the lock for too long.
    """
    deadline = time.monotonic() + _LONGEST_LOCK
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another writer holds its lock") from None
            time.sleep(_LOCK_PAUSE)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            logger.warning("%s: no locks there: only one process may write this file", path)
            return
        else:
            return


def _cut_fragment(descriptor: int, path: str) -> int:
    """Cut off a partial envelope that a crash left at the end of a file. Return the file's size.

    Readers refuse a file with a partial envelope. A complete envelope without line break stays.
    """
    size = os.fstat(descriptor).st_size
    begin = max(0, size - _LONGEST_FRAGMENT)
    if not size or os.pread(descriptor, 1, size - 1) == b"\n" or not path.endswith(".json"):
        return size
    tail = os.pread(descriptor, size - begin, begin)
    cut = tail.rfind(b"\n") + 1
    if begin and not cut:
        return size  # too long for an envelope of ccagent
    try:
        msgspec.json.decode(tail[cut:])
    except msgspec.DecodeError:
        logger.warning("%s: cut off half an envelope of %d bytes", path, len(tail) - cut)
        size = begin + cut
        os.ftruncate(descriptor, size)
    return size


def build_path(message: Message) -> str:
    """Return the path of a message's file below the directory: `2026/01/31/0+sample-c1-1.json`."""
    day = time.strftime("%Y/%m/%d", time.gmtime(message.time))
    if message.format == "line":
        return f"{day}/{message.kind}-{message.node}.line"
    match message.kind:
        case "job":
            return f"{day}/0+job-slurm.json"
        case "cluster":
            return f"{day}/0+cluzter-slurm.json"
        case kind:
            return f"{day}/0+{kind}-{message.node}.json"
