"""Files of queues: safe opening, detection of removal, replacement of damaged files."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import mmap
import os
import sqlite3
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING
from urllib.parse import quote

from ccagent.errors import NotPermittedError
from ccagent.queue.database import QueueDatabase
from ccagent.queue.salvage import is_log_damaged, salvage
from ccagent.service.private_directories import check_directory, make_directory
from ccagent.service.private_files import check_file, make_private, open_private

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.entry import QueueEntry

SUFFIX = ".outbox"
"""Suffix of a queue's file name, after the quoted name of the sink."""

_SIDE_FILES = ("-wal", "-shm")
_DAMAGED = ".damaged-"
_RECOVERING = ".recovering-"
_DAMAGED_KEPT = 2
_REPAIR_SECONDS = 10.0
_AT_ONCE = 100
_LOCK = struct.Struct("hhqqi")
"""The kernel's struct flock: type, whence, start, length, process."""
_USED_BYTE = 128
_opened: weakref.WeakSet[QueueDatabase] = weakref.WeakSet()
"""The databases that this process has opened."""
_opened_lock = threading.Lock()

# SQLite's result codes, sqlite.org/rescode.html.
_ERROR, _INTERNAL, _READONLY, _CORRUPT, _SCHEMA, _TOOBIG = 1, 2, 8, 11, 17, 18
_CONSTRAINT, _MISMATCH, _FORMAT, _RANGE, _NOTADB = 19, 20, 24, 25, 26
_SHORT_READ = 522
_CODES_OF_DAMAGE = frozenset(
    {
        _ERROR,  # a table or column is missing in this file
        _INTERNAL,
        _CORRUPT,
        _SCHEMA,
        _TOOBIG,
        _CONSTRAINT,
        _MISMATCH,
        _FORMAT,
        _RANGE,
        _NOTADB,
    }
)


def make_file_name(sink: str) -> str:
    """Return the file name of a sink's queue."""
    return quote(sink, safe="") + SUFFIX


def open_disk(path: str, settings: OutboxSettings) -> QueueDatabase:
    """Open the queue in a file, and create it if needed.

    Raise sqlite3.Error, OSError, or NotPermittedError if other users may write there.
    """
    make_directory(settings.directory)
    if reason := check_directory(settings.directory):
        raise NotPermittedError(reason)
    # Existing files are not opened here: closing them would release SQLite's locks.
    for suffix in _SIDE_FILES:
        check_file(path + suffix)
    make_private(path)
    _check_log(path)
    database = QueueDatabase(
        path,
        max_bytes=settings.max_bytes,
        max_age=settings.max_age.seconds,
        durability=settings.durability,
    )
    with _opened_lock:
        _opened.add(database)
    return database


def is_damage(error: Exception, path: str) -> bool:
    """Return whether an error means that the file is damaged."""
    if not isinstance(error, sqlite3.Error):
        return not isinstance(error, (OSError, MemoryError, NotPermittedError))
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(error, sqlite3.ProgrammingError)
    if code & 0xFF == _READONLY:
        # The header of a damaged file may mark the file as read-only.
        return os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)
    return code & 0xFF in _CODES_OF_DAMAGE or code == _SHORT_READ


def explain(error: Exception) -> str:
    """Return the reason of an error as text for a log line."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


class WatchedFile:
    """The file of an open queue, to detect its removal or replacement."""

    def __init__(self, path: str) -> None:
        """Open the file. Raise OSError if that fails."""
        self._path = path
        # Closing an O_PATH descriptor does not release SQLite's locks.
        self._descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    def is_current(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            there, here = os.lstat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def is_removed(self) -> bool:
        """Return whether the file was unlinked."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def lock_for_repair(path: str) -> Generator[None]:
    """Hold the lock that only one process at a time has while it replaces a file.

    Raise OSError, or NotPermittedError if the lock file may be another user's.
    """
    descriptor = open_private(path + ".repair")
    try:
        deadline = time.monotonic() + _REPAIR_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def set_aside(path: str) -> None:
    """Rename a damaged file to a name that `recover_all` searches. Raise OSError on failure."""
    aside = f"{path}{_RECOVERING}{time.time_ns()}"
    # The file is renamed last: SQLite would delete the old log beside a new file.
    for suffix in (*_SIDE_FILES, ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)


def list_unrecovered(path: str) -> list[str]:
    """Return the damaged files whose messages are not recovered yet, oldest first."""
    found = glob.glob(f"{glob.escape(path)}{_RECOVERING}*")
    return sorted({each.removesuffix("-wal").removesuffix("-shm") for each in found})


def recover_all(path: str, into: QueueDatabase, without: Collection[int]) -> list[tuple[str, int]]:
    """Store the undamaged messages of damaged files in the new one.

    without: numbers of messages that are already acknowledged. Return the new names of the damaged
    files, and the number of messages from each. The last few damaged files are kept. An interrupted
    recovery is repeated without the messages that are already in the new file. Raise sqlite3.Error,
    OSError or NotPermittedError.
    """
    done: list[tuple[str, int]] = []
    with lock_for_repair(path):
        for recovering in list_unrecovered(path):
            known = {each.message.id for each in into.read_entries()}
            count = _recover(recovering, into, without, known)
            kept = recovering.replace(_RECOVERING, _DAMAGED)
            for suffix in (*_SIDE_FILES, ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(recovering + suffix, kept + suffix)
            done.append((kept, count))
    _delete_old(path)
    return done


def _delete_old(path: str) -> None:
    """Delete all damaged files except for the last few."""
    kept = sorted(
        each for each in glob.glob(f"{glob.escape(path)}{_DAMAGED}*") if each[-1].isdigit()
    )
    for old in kept[:-_DAMAGED_KEPT]:
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(OSError):
                os.unlink(old + suffix)


def _recover(aside: str, into: QueueDatabase, without: Collection[int], known: set[str]) -> int:
    """Store the undamaged messages of a damaged file in the new one. Return their number."""
    count = 0
    with contextlib.ExitStack() as stack:
        contents = [_map_file(stack, aside + suffix) for suffix in ("", "-wal")]
        messages: list[QueueEntry] = []
        for is_letter, number, entry in salvage(*contents):
            if is_letter:
                into.add_dead_letter(entry.message, "recovered from a damaged file")
            elif number not in without and (not entry.message.id or entry.message.id not in known):
                messages.append(entry)
                count += 1
            if len(messages) >= _AT_ONCE:
                into.restore(messages, _assume_no_age)
                messages = []
        if messages:
            into.restore(messages, _assume_no_age)
    return count


def _assume_no_age(_: QueueEntry) -> float:
    """Return 0 as age of an entry: the clock of a damaged file is unknown."""
    return 0.0


def _check_log(path: str) -> None:
    """Check the write-ahead log of a killed process.

    Raise sqlite3.DatabaseError if the log is damaged: SQLite would ignore the rest of it.
    """
    with _opened_lock:
        is_ours = any(each.is_open and each.path == path for each in _opened)
    if is_ours:
        return  # closing the file would release SQLite's locks
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        log = _map_file(stack, path + "-wal")
        if not log or _is_used(path):
            return
        if is_log_damaged(log):
            raise sqlite3.DatabaseError("malformed: a checksum of the write-ahead log is wrong")


def _is_used(path: str) -> bool:
    """Return whether another process has a database open.

    Each process with an open database locks byte 128 of the -shm file.
    Source: sqlite.org/walformat.html, 2.3.
    """
    try:
        descriptor = os.open(path + "-shm", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _USED_BYTE, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    finally:
        os.close(descriptor)
    kind: int = _LOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def _map_file(stack: contextlib.ExitStack, path: str) -> bytes | mmap.mmap:
    """Map a file into memory. Return empty bytes for an empty or missing one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        if not os.fstat(descriptor).st_size:
            return b""
        return stack.enter_context(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)
