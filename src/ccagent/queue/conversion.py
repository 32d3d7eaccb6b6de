"""The SQLite file of the version before: its messages are read once, then it is deleted."""

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
from ccagent.service.private_files import check_file, open_private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.queue.entry import QueueEntry

_HEAD = struct.calcsize("<4sII")
"""Bytes of a stored message before its content: magic number, length, CRC-32."""
_MESSAGES = """
SELECT * FROM (SELECT entry, '', 0 FROM messages ORDER BY number)
UNION ALL SELECT * FROM (SELECT entry, reason, rejected FROM dead_letters ORDER BY number)
"""
_SIDE_FILES = ("-wal", "-shm", ".lock", ".repair", "")


def take_messages(path: str) -> Iterator[QueueEntry]:
    """Yield the messages and dead letters of an old file. Delete it after the last one.

    A damaged file is renamed after its readable messages. Raise OSError or NotPermittedError; the
    file then stays.
    """
    for suffix in _SIDE_FILES:
        check_file(path + suffix)
    lock = open_private(path + ".lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a process of the old version may run
        with contextlib.closing(sqlite3.connect(path)) as database:
            for stored, reason, rejected in database.execute(_MESSAGES):
                with contextlib.suppress(UnparsableError, TypeError):  # a damaged row costs itself
                    entry = decode_entry(stored[_HEAD:])
                    yield msgspec.structs.replace(entry, reason=reason, rejected=rejected)
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
