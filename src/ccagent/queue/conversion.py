"""Conversion of the SQLite file of the version before into segments, once."""

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
    from ccagent.queue.segments import QueueSegments

_HEAD = struct.calcsize("<4sII")
"""Bytes of a stored message before its content: magic number, length, CRC-32."""
_MESSAGES = """
SELECT * FROM (SELECT entry, '', 0, 0 FROM messages ORDER BY number)
UNION ALL SELECT * FROM (SELECT entry, reason, rejected, 1 FROM dead_letters ORDER BY number)
"""
_SIDE_FILES = ("-wal", "-shm", ".lock", ".repair", "")


def convert(path: str, segments: QueueSegments) -> None:
    """Move the messages of an old file to segments, and delete the file.

    A damaged file is renamed after its readable messages were moved. After an interruption the
    next start continues. Raise OSError or NotPermittedError; the file then stays.
    """
    for suffix in _SIDE_FILES:
        check_file(path + suffix)
    lock = open_private(path + ".lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a process of the old version may run
        _move(path, segments)
    except BlockingIOError:
        return
    except sqlite3.Error as error:
        if os.path.getsize(path):
            os.rename(path, f"{path}.damaged-{time.time_ns()}")
            logger.error("outbox %s: damaged: %s; the file is set aside", path, error)
    finally:
        os.close(lock)
    for suffix in _SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _move(path: str, segments: QueueSegments) -> None:
    """Store the messages of an old file in segments. Raise sqlite3.Error if it is damaged."""
    count = 0
    known = {
        message.entry.message.id
        for content in segments.read_files().values()
        for message in content.messages
        if message.entry is not None
    }
    with contextlib.closing(sqlite3.connect(path)) as database:
        for stored, reason, rejected, is_dead in database.execute(_MESSAGES):
            with contextlib.suppress(UnparsableError, TypeError):  # a damaged row costs itself
                entry = decode_entry(stored[_HEAD:])
                if entry.message.id not in known:
                    clock = segments.now().clock  # its age starts again
                    entry = msgspec.structs.replace(
                        entry, clock=clock, reason=reason, rejected=rejected
                    )
                    count += segments.append([entry], DEAD if is_dead else WAITING)
    logger.info("outbox %s: %d messages were moved to %s", path, count, segments.path)
