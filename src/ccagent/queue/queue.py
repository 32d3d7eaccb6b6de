"""The queue of one sink: on disk while the disk works, else in memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.log import logger
from ccagent.queue.database import MEMORY, QueueDatabase
from ccagent.queue.disk import DATABASE_ERRORS, QueueDisk
from ccagent.queue.files import make_file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.rows import DeadLetter, QueuedMessage
    from ccagent.records.message import Message

_MEMORY_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_MOVED_BYTES = 128 * 1024

BATCH = 500
"""Maximum number of messages in one batch."""


class QueueBatch(NamedTuple):
    """The next messages to send, and their database."""

    database: QueueDatabase
    messages: list[QueuedMessage]


class Queue:
    """Keeps the messages of one sink: on disk while the disk works, else in memory.

    No method raises an exception for a failure of the disk. The failure is logged, and messages are
    kept in memory until the disk works again.
    """

    def __init__(
        self,
        name: str,
        settings: OutboxSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.path = MEMORY
        if settings.directory and not settings.memory:
            self.path = os.path.join(settings.directory, make_file_name(name))
        self._lock = threading.RLock()
        self._is_memory_used = False
        self._dropped = 0
        self._lost = 0
        self._damaged = 0
        self._disk = QueueDisk(self.path, settings, monotonic)
        if self.is_on_disk:
            self._disk.open()
        self._memory = QueueDatabase(
            max_bytes=min(settings.max_bytes, _MEMORY_BYTES), max_age=settings.max_age.seconds
        )

    @property
    def is_on_disk(self) -> bool:
        """True if the queue is configured to survive the process."""
        return self.path != MEMORY

    @property
    def error(self) -> str:
        """The reason why the disk can't be used now; empty if it can be used."""
        with self._lock:
            return self._disk.error

    @property
    def damaged(self) -> int:
        """The number of stored messages that could not be decoded, since the start."""
        return self._damaged

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages. Return the number of older messages dropped to make room."""
        with self._lock:
            before = self._dropped
            self._note_dropped(self._put(messages))
            return self._dropped - before

    def _note_dropped(self, count: int) -> None:
        """Count and log messages that were dropped to make room."""
        self._dropped += count
        if count:
            logger.error(
                "sink %s: the queue is full or too old: the %d oldest messages are dropped; "
                "see outbox.max-bytes and outbox.max-age",
                self.name,
                count,
            )

    def next_batch(
        self,
        count: int = BATCH,
        *,
        from_disk: bool = True,
        only_number: int | None = None,
        without_kinds: Collection[str] = (),
        without_numbers: Collection[int] = (),
    ) -> QueueBatch:
        """Return at most `count` of the oldest messages, those on disk first.

        only_number: return only this message. without_kinds, without_numbers: exclude these. A
        message that can't be decoded becomes a dead letter.
        """

        def read(database: QueueDatabase) -> QueueBatch:
            return self._read(database, count, only_number, without_kinds, without_numbers)

        with self._lock:
            if self._disk.is_recovering:
                self.check()
            for _ in range(2):
                disk = self._disk.database
                if disk is None or not from_disk:
                    break
                try:
                    batch = read(disk)
                except DATABASE_ERRORS as error:
                    self._disk.fail(error)  # replaces a damaged file, which is read then
                else:
                    if batch.messages:
                        return batch
                    break
            return read(self._memory)

    def remove(self, batch: QueueBatch, numbers: Collection[int]) -> None:
        """Delete acknowledged messages; later if the disk fails now."""
        if not numbers:
            return
        with self._lock:
            try:
                batch.database.remove(numbers)
            except DATABASE_ERRORS as error:
                if batch.database is self._disk.database:
                    self._disk.unremoved.update(numbers)
                    self._disk.fail(error)

    def reject(self, batch: QueueBatch, number: int, reason: str) -> None:
        """Turn a message into a dead letter."""
        with self._lock:
            try:
                batch.database.reject(number, reason)
            except DATABASE_ERRORS as error:
                if batch.database is self._disk.database:
                    self._disk.unremoved.add(number)
                    self._disk.fail(error)

    def add_dead_letter(self, batch: QueueBatch, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        with self._lock:
            try:
                batch.database.add_dead_letter(message, reason)
            except sqlite3.Error as error:
                self._disk.fail(error)

    def has_work(self) -> bool:
        """Return whether a message is queued or may be in a damaged file."""
        with self._lock:
            if self._disk.is_recovering or self.count_in_memory():
                return True
            return bool(self._disk.ask(QueueDatabase.has_messages))

    def can_recover(self) -> bool:
        """Return whether `check` would now move messages of a damaged file to a new one."""
        with self._lock:
            return self._disk.is_recovering and self._disk.is_usable()

    @property
    def dropped(self) -> int:
        """The number of messages dropped to make room, since the start."""
        return self._dropped

    def count(self) -> int:
        """Return the number of queued messages."""
        with self._lock:
            return self.count_in_memory() + self._disk.ask(QueueDatabase.count)

    def count_in_memory(self) -> int:
        """Return the number of messages that would be lost with the process."""
        with self._lock:
            if not self._is_memory_used:
                return 0
            try:
                return self._memory.count()
            except sqlite3.Error:
                return 0

    def size(self) -> int:
        """Return the bytes of the queued messages; 0 once the queue is closed."""
        with self._lock:
            size = self._disk.ask(QueueDatabase.size)
            with contextlib.suppress(sqlite3.Error):
                size += self._memory.size()
            return size

    def read_dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters in memory. `ccagent outbox` lists those on disk."""
        with self._lock:
            return self._memory.read_dead_letters()

    def check(self) -> None:
        """Check for a removed or replaced file, and for a disk that works again."""
        with self._lock:
            if not self.is_on_disk:
                return
            self._check_file()
            if self._disk.is_due():
                self._disk.open()
            if self._disk.is_usable() and self._disk.is_recovering:
                self._disk.recover()
            if self._disk.is_usable():
                self._move_to_disk()

    def close(self) -> None:
        """Close the databases. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if self.is_on_disk:
                self._check_file()
                if self._disk.database is None and self.count_in_memory():
                    self._disk.open()
                self._move_to_disk()
            self._disk.close()
            self._lost = self.count_in_memory()
            with contextlib.suppress(sqlite3.Error):
                self._memory.close()

    @property
    def lost(self) -> int:
        """The number of messages that were only in memory when the queue was closed."""
        return self._lost

    def _put(self, messages: Sequence[Message]) -> int:
        """Store messages on disk, else in memory. Return the number of older messages deleted."""
        if (
            self._disk.database is None
            or self._is_memory_used
            or self._disk.retry_at
            or self._disk.is_recovering
        ):
            self.check()
        if self._disk.is_usable() and not self.count_in_memory():
            for _ in range(2):
                disk = self._disk.database
                if disk is None:
                    break
                try:
                    dropped = disk.put(messages)
                except DATABASE_ERRORS as error:
                    self._disk.fail(error)  # replaces a damaged file, which is read then
                    if disk is self._disk.database:
                        break
                    continue
                if self._disk.is_current():
                    if self._disk.retry_at:
                        self._disk.note_working()
                    return dropped
                if self._disk.is_removed():
                    self.check()  # also moves these messages
                    return dropped
                # Another process has replaced the file.
                self._disk.close()
                self._disk.open()
        self._is_memory_used = True
        return self._memory.put(messages)

    def _read(
        self,
        database: QueueDatabase,
        count: int,
        only_number: int | None,
        without_kinds: Collection[str],
        without_numbers: Collection[int],
    ) -> QueueBatch:
        if database is self._disk.database and self._disk.unremoved:
            database.remove(self._disk.unremoved)
            self._disk.unremoved.clear()
        while True:
            found, damaged = database.read_oldest(
                count,
                _BATCH_BYTES,
                only_number=only_number,
                without_kinds=without_kinds,
                without_numbers=without_numbers,
            )
            if damaged:
                database.check_structure()
            for number, reason in damaged:
                self._damaged += 1
                logger.error("sink %s: message %d is %s", self.name, number, reason)
                database.reject(number, reason)
            if found or not damaged:
                return QueueBatch(database, found)

    def _check_file(self) -> None:
        """Open a new file if the old one was removed or replaced."""
        disk = self._disk.database
        if disk is None or self._disk.is_current():
            return
        moved = 0
        if self._disk.is_removed():
            # The unlinked file can still be read.
            try:
                self._is_memory_used = True
                for entry in disk.read_entries(without=self._disk.unremoved):
                    self._note_dropped(self._memory.restore([entry], disk.compute_age))
                    moved += 1
                for letter in disk.read_dead_letters():
                    if letter.entry is not None:
                        self._memory.add_dead_letter(letter.entry.message, letter.reason)
            except DATABASE_ERRORS as error:
                logger.error("outbox %s: the removed file can't be read: %s", self.path, error)
        self._disk.close()
        logger.error(
            "outbox %s: the file was removed or replaced; %d messages are moved to a new one",
            self.path,
            moved,
        )
        self._disk.open()

    def _move_to_disk(self) -> None:
        """Move messages from memory to the disk if it works."""
        while (disk := self._disk.database) is not None and self._is_memory_used:
            batch, _ = self._memory.read_oldest(BATCH, _MOVED_BYTES)
            letters = [] if batch else self._memory.read_dead_letters()
            try:
                if batch:
                    entries = [queued.entry for queued in batch]
                    self._note_dropped(disk.restore(entries, self._memory.compute_age))
                for letter in letters:
                    if letter.entry is not None:
                        disk.add_dead_letter(letter.entry.message, letter.reason)
            except DATABASE_ERRORS as error:
                self._disk.fail(error)
                break
            self._memory.remove([queued.number for queued in batch])
            self._memory.drop([letter.number for letter in letters])
            if not batch:
                self._is_memory_used = False
                self._disk.note_working()
