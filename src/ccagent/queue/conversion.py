"""Conversion of the SQLite file of version 1.0 into segments, once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import UnparsableError
from ccagent.log import logger
from ccagent.queue.entry import decode_entry
from ccagent.queue.segment import DEAD, WAITING
from ccagent.service.private_files import check_file, open_private

if TYPE_CHECKING:
    from ccagent.queue.entry import QueueEntry
    from ccagent.queue.segment_directory import SegmentDirectory

_HEAD = struct.calcsize("<4sII")
"""Bytes of a stored message before its content: magic number, length, CRC-32."""
_TABLES = (
    ("SELECT entry, '', 0 FROM messages ORDER BY number", WAITING),
    ("SELECT entry, reason, rejected FROM dead_letters ORDER BY number", DEAD),
)
_SIDE_FILES = ("-wal", "-shm", ".lock", ".repair", "")


def convert(path: str, segments: SegmentDirectory) -> None:
    """Move the messages of an old file to segments, and delete the file.

    A damaged file is renamed after its readable messages were moved. After an interruption the
    next start continues. Raise OSError or NotPermittedError; the file then stays.
    """
    for suffix in _SIDE_FILES:
        check_file(path + suffix)
    lock = open_private(path + ".lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a process of the old version may run
        count, error = _move(path, segments)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
    if error:
        os.rename(path, f"{path}.damaged-{time.time_ns()}")
        logger.error("outbox %s: %s; the file is set aside", path, error)
    for suffix in _SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)
    logger.info("outbox %s: %d messages were moved to %s", path, count, segments.path)


def _move(path: str, segments: SegmentDirectory) -> tuple[int, str]:
    """Store the messages of an old file in segments. Return their number, and an error."""
    count, error = 0, ""
    known = {
        message.entry.message.id
        for content in segments.read_files().values()
        for message in content.messages
        if message.entry is not None
    }
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement, state in _TABLES:
            try:
                for row in database.execute(statement):
                    entry = _parse_row(row, segments.now().clock)
                    if entry is not None and entry.message.id not in known:
                        count += segments.append([entry], state)
            except sqlite3.Error as reason:
                if "no such table" not in str(reason) or os.path.getsize(path):
                    error = f"damaged: {reason}"
    return count, error


def _parse_row(row: tuple[object, str, float], clock: float) -> QueueEntry | None:
    """Return the entry of a row. Its age starts again. None if the row is damaged."""
    stored, reason, rejected = row
    if not isinstance(stored, bytes):
        return None
    with contextlib.suppress(UnparsableError):
        entry = decode_entry(stored[_HEAD:])
        return msgspec.structs.replace(entry, clock=clock, reason=reason, rejected=rejected)
    return None
