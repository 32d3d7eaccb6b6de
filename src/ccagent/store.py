"""The messages of one sink, on disk while that works, else in memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from ccagent.log import logger
from ccagent.spool import MEMORY, Spool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.config import OutboxSettings
    from ccagent.message import Message
    from ccagent.spool import Waiting

_MEMORY_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_DAMAGED = ("malformed", "not a database", "file is encrypted")

BATCH = 500
"""The most messages that are sent at once."""

SUFFIX = ".outbox"
"""What the files of outboxes end in; before it stands the quoted name of the sink."""


def file_of(sink: str) -> str:
    """Name the file of a sink's outbox."""
    return quote(sink, safe="") + SUFFIX


class Store:
    """Keeps the messages of one sink: on disk while that works, else in memory.

    Nothing here raises: what the disk refuses is said, and kept in memory.
    """

    retry_after = 10.0
    """Seconds after which a disk that failed is tried again."""

    def __init__(self, name: str, settings: OutboxSettings) -> None:
        self.name = name
        self.path = MEMORY
        if settings.directory and not settings.memory:
            self.path = os.path.join(settings.directory, file_of(name))
        self._settings = settings
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._acknowledged: list[int] = []
        self._disk = self._opened() if self.is_on_disk else None
        self._memory = Spool(
            max_bytes=min(settings.max_bytes, _MEMORY_BYTES), max_age=settings.max_age.seconds
        )

    @property
    def is_on_disk(self) -> bool:
        """True for one that survives the process."""
        return self.path != MEMORY

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages; give how many older ones were dropped to make room."""
        with self._lock:
            dropped = self._put(messages)
        if dropped:
            logger.error(
                "sink %s: too much waits, or for too long; the oldest are dropped", self.name
            )
        return dropped

    def oldest(self, count: int = BATCH) -> tuple[Spool, list[Waiting]]:
        """Give the next `count` messages at most, and their spool; what is on disk is older."""
        with self._lock:
            if self._disk is not None:
                try:
                    if self._acknowledged:
                        self._disk.remove(self._acknowledged)
                        self._acknowledged = []
                    batch = self._disk.oldest(count, _BATCH_BYTES)
                    if batch:
                        return self._disk, batch
                except sqlite3.Error as error:
                    self._failed(error)
            return self._memory, self._memory.oldest(count, _BATCH_BYTES)

    def remove(self, spool: Spool, batch: Sequence[Waiting]) -> None:
        """Delete what was acknowledged; where the disk refuses even that, before the next batch."""
        numbers = [waiting.number for waiting in batch]
        with self._lock:
            try:
                if numbers:
                    spool.remove(numbers)
            except sqlite3.Error as error:
                if spool is self._disk:
                    self._acknowledged += numbers
                    self._failed(error)

    def set_aside(self, spool: Spool, waiting: Waiting, reason: str) -> None:
        """Move a refused message out of the way."""
        with self._lock:
            try:
                spool.set_aside(waiting.number, reason)
            except sqlite3.Error as error:
                if spool is self._disk:
                    self._acknowledged.append(waiting.number)
                    self._failed(error)

    def count(self) -> int:
        """How many messages wait."""
        with self._lock:
            count = self._memory.summary().messages
            if self._disk is not None:
                with contextlib.suppress(sqlite3.Error):
                    count += self._disk.summary().messages - len(self._acknowledged)
            return count

    def size(self) -> int:
        """How many bytes the messages have that wait; 0 once it is closed."""
        size = 0
        with self._lock, contextlib.suppress(sqlite3.Error):
            size += self._memory.summary().size
            if self._disk is not None:
                size += self._disk.summary().size
        return size

    def close(self) -> None:
        """Close the databases."""
        with self._lock:
            if self._disk is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._move_to(self._disk)
                self._disk.close()
                self._disk = None
            self._memory.close()

    def _put(self, messages: Sequence[Message]) -> int:
        if self.is_on_disk and time.monotonic() >= self._retry_at:
            self._disk = self._disk or self._opened()
            if self._disk is not None:
                try:
                    self._move_to(self._disk)
                    return self._disk.put(messages)
                except sqlite3.Error as error:
                    self._failed(error)
        return self._memory.put(messages)

    def _move_to(self, disk: Spool) -> None:
        """Move what had to wait in memory to a disk that works again."""
        while batch := self._memory.oldest(BATCH, _BATCH_BYTES):
            disk.put([waiting.message for waiting in batch])
            self._memory.remove([waiting.number for waiting in batch])

    def _opened(self) -> Spool | None:
        """Open the file; a damaged one is set aside and a new one begun."""
        settings = self._settings
        try:
            with contextlib.suppress(FileExistsError):
                os.makedirs(settings.directory, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return Spool(
                self.path,
                max_bytes=settings.max_bytes,
                max_age=settings.max_age.seconds,
                durability=settings.durability,
            )
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                return self._begun_anew(error)
            self._put_off(str(error))
        except OSError as error:
            self._put_off(error.strerror or str(error))
        return None

    def _begun_anew(self, error: sqlite3.Error) -> Spool | None:
        """Set a damaged file aside, where somebody may look at it."""
        aside = f"{self.path}.damaged-{int(time.time())}"
        try:
            os.rename(self.path, aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path + suffix, aside + suffix)
        except OSError as reason:
            self._put_off(reason.strerror or str(reason))
            return None
        logger.error("outbox %s: %s; set aside as %s and begun anew", self.path, error, aside)
        return self._opened()

    def _failed(self, error: sqlite3.Error) -> None:
        """Leave the disk alone for a while; a damaged file is replaced at once."""
        if _is_damage(error) and self._disk is not None:
            with contextlib.suppress(sqlite3.Error):
                self._disk.close()
            self._acknowledged = []
            self._disk = self._begun_anew(error)
        else:
            self._put_off(str(error))

    def _put_off(self, reason: str) -> None:
        self._retry_at = time.monotonic() + self.retry_after
        logger.error("outbox %s: %s; messages wait in memory", self.path, reason)


def _is_damage(error: sqlite3.Error) -> bool:
    return any(text in str(error) for text in _DAMAGED)
