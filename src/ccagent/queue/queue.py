"""The queue of one sink: on disk while that works, else in memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.queue.database import MEMORY, QueueDatabase
from ccagent.queue.files import (
    WatchedFile,
    explain,
    is_damage,
    list_unrecovered,
    lock_for_repair,
    make_file_name,
    open_disk,
    recover_all,
    set_aside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.rows import DeadLetter, QueuedMessage
    from ccagent.records.message import Message

_MEMORY_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_MOVED_BYTES = 128 * 1024
_REPLACED_AT_MOST_EVERY = 30.0
"""Seconds between two replacements of a damaged file."""
_FAILURES = (sqlite3.Error, ValueError, TypeError, OverflowError)
"""Errors of a database, and of a reader of damaged content."""

BATCH = 500
"""The most messages that are sent at once."""


class QueueBatch(NamedTuple):
    """The next messages to send, and the database that holds them."""

    database: QueueDatabase
    messages: list[QueuedMessage]


class Queue:
    """Keeps the messages of one sink: on disk while that works, else in memory.

    No method raises for a failure of the disk: it is logged, and messages are kept in memory until
    the disk works again.
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
        self.retry_after = 10.0
        """Seconds after which a disk that failed is tried again."""
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._unremoved: set[int] = set()
        self._is_memory_used = False
        self._is_recovering = False
        self._acknowledged: set[int] = set()
        self._dropped = 0
        self._lost = 0
        self._damaged = 0
        self._last_error = ""
        self._disk: QueueDatabase | None = None
        self._file: WatchedFile | None = None
        self._replaced_at = -_REPLACED_AT_MOST_EVERY
        if self.is_on_disk:
            self._open()
        self._memory = QueueDatabase(
            max_bytes=min(settings.max_bytes, _MEMORY_BYTES), max_age=settings.max_age.seconds
        )

    @property
    def is_on_disk(self) -> bool:
        """True for a queue that is to survive the process."""
        return self.path != MEMORY

    @property
    def error(self) -> str:
        """Why the disk can't be used at present; empty if it can."""
        with self._lock:
            return self._last_error

    @property
    def damaged(self) -> int:
        """The number of stored messages that could not be decoded, since the start."""
        return self._damaged

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages. Return how many older ones were dropped to make room."""
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

        only_number: only that one. without_kinds, without_numbers: none of these. A message
        that can't be decoded becomes a dead letter.
        """

        def read(database: QueueDatabase) -> QueueBatch:
            return self._read(database, count, only_number, without_kinds, without_numbers)

        with self._lock:
            if self._is_recovering:
                self.check()
            for _ in range(2):
                disk = self._disk
                if disk is None or not from_disk:
                    break
                try:
                    batch = read(disk)
                except _FAILURES as error:
                    self._fail(error)  # replaces a damaged file, which is read then
                else:
                    if batch.messages:
                        return batch
                    break
            return read(self._memory)

    def remove(self, batch: QueueBatch, numbers: Collection[int]) -> None:
        """Delete acknowledged messages. If the disk fails they are deleted later."""
        if not numbers:
            return
        with self._lock:
            try:
                batch.database.remove(numbers)
            except _FAILURES as error:
                if batch.database is self._disk:
                    self._unremoved.update(numbers)
                    self._fail(error)

    def reject(self, batch: QueueBatch, number: int, reason: str) -> None:
        """Make a dead letter of a message."""
        with self._lock:
            try:
                batch.database.reject(number, reason)
            except _FAILURES as error:
                if batch.database is self._disk:
                    self._unremoved.add(number)
                    self._fail(error)

    def add_dead_letter(self, batch: QueueBatch, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        with self._lock:
            try:
                batch.database.add_dead_letter(message, reason)
            except sqlite3.Error as error:
                self._fail(error)

    def has_work(self) -> bool:
        """Return whether a message is queued, or may be in a damaged file."""
        with self._lock:
            if self._is_recovering or self.count_in_memory():
                return True
            return bool(self._ask_disk(QueueDatabase.has_messages))

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped to make room, since the start."""
        return self._dropped

    def count(self) -> int:
        """Return the number of queued messages."""
        with self._lock:
            return self.count_in_memory() + self._ask_disk(QueueDatabase.count)

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
            size = self._ask_disk(QueueDatabase.size)
            with contextlib.suppress(sqlite3.Error):
                size += self._memory.size()
            return size

    def read_dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters in memory; those on disk are for `ccagent outbox`."""
        with self._lock:
            return self._memory.read_dead_letters()

    def check(self) -> None:
        """Check for a removed or replaced file, and for a disk that works again."""
        with self._lock:
            if not self.is_on_disk:
                return
            self._check_file()
            if self._disk is None and self._monotonic() >= self._retry_at:
                self._open()
            if self._is_usable() and self._is_recovering:
                self._recover()
            if self._is_usable():
                self._move_to_disk()

    def close(self) -> None:
        """Close the databases. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if self.is_on_disk:
                self._check_file()
                if self._disk is None and self.count_in_memory():
                    self._open()
                self._move_to_disk()
            self._leave_file()
            self._lost = self.count_in_memory()
            with contextlib.suppress(sqlite3.Error):
                self._memory.close()

    @property
    def lost(self) -> int:
        """The number of messages that were in memory alone when it was closed."""
        return self._lost

    def _put(self, messages: Sequence[Message]) -> int:
        """Store messages on disk, else in memory. Return how many older ones were deleted."""
        if self._disk is None or self._is_memory_used or self._retry_at or self._is_recovering:
            self.check()
        if self._is_usable() and not self.count_in_memory():
            for _ in range(2):
                disk = self._disk
                if disk is None:
                    break
                try:
                    dropped = disk.put(messages)
                except _FAILURES as error:
                    self._fail(error)  # replaces a damaged file, which is read then
                    if disk is self._disk:
                        break
                    continue
                if self._is_current():
                    if self._retry_at:
                        self._note_working()
                    return dropped
                if self._file is not None and self._file.is_removed():
                    self.check()  # moves these messages too
                    return dropped
                # Another process has replaced the file meanwhile.
                self._leave_file()
                self._open()
        self._is_memory_used = True
        return self._memory.put(messages)

    def _is_usable(self) -> bool:
        """Return whether the disk is open and need not pause."""
        return self._disk is not None and self._monotonic() >= self._retry_at

    def _read(
        self,
        database: QueueDatabase,
        count: int,
        only_number: int | None,
        without_kinds: Collection[str],
        without_numbers: Collection[int],
    ) -> QueueBatch:
        if database is self._disk and self._unremoved:
            database.remove(self._unremoved)
            self._unremoved.clear()
        while True:
            found, damaged = database.read_oldest(
                count,
                _BATCH_BYTES,
                only_number=only_number,
                without_kinds=without_kinds,
                without_numbers=without_numbers,
            )
            for number, reason in damaged:
                self._damaged += 1
                logger.error("sink %s: message %d is %s", self.name, number, reason)
                database.reject(number, reason)
            if found or not damaged:
                return QueueBatch(database, found)

    def _ask_disk(self, value: Callable[[QueueDatabase], int]) -> int:
        """Return a number from the database on disk; 0 if there is none, or it fails."""
        if self._disk is None:
            return 0
        try:
            return value(self._disk)
        except _FAILURES:
            return 0

    def _is_current(self) -> bool:
        return self._file is None or self._file.is_current()

    def _check_file(self) -> None:
        """Open a new file if the old one was removed or replaced."""
        if self._disk is None or self._file is None or self._is_current():
            return
        moved = 0
        if self._file.is_removed():
            # It has no name left, and can still be read.
            try:
                self._disk.remove(self._unremoved)
                self._is_memory_used = True
                for entry in self._disk.read_entries():
                    self._note_dropped(self._memory.restore([entry], self._disk.compute_age))
                    moved += 1
                for letter in self._disk.read_dead_letters():
                    if letter.entry is not None:
                        self._memory.add_dead_letter(letter.entry.message, letter.reason)
            except _FAILURES as error:
                logger.error("outbox %s: the removed file can't be read: %s", self.path, error)
        self._leave_file()
        logger.error(
            "outbox %s: the file was removed or replaced; %d messages are moved to a new one",
            self.path,
            moved,
        )
        self._open()

    def _leave_file(self) -> None:
        """Close the file."""
        if self._disk is not None:
            with contextlib.suppress(sqlite3.Error):
                self._disk.close()
            self._disk = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._unremoved.clear()

    def _move_to_disk(self) -> None:
        """Move messages from memory to a disk that works."""
        while self._disk is not None and self._is_memory_used:
            batch, _ = self._memory.read_oldest(BATCH, _MOVED_BYTES)
            letters = [] if batch else self._memory.read_dead_letters()
            try:
                if batch:
                    entries = [waiting.entry for waiting in batch]
                    self._note_dropped(self._disk.restore(entries, self._memory.compute_age))
                for letter in letters:
                    if letter.entry is not None:
                        self._disk.add_dead_letter(letter.entry.message, letter.reason)
            except _FAILURES as error:
                self._fail(error)
                break
            self._memory.remove([waiting.number for waiting in batch])
            self._memory.drop([letter.number for letter in letters])
            if not batch:
                self._is_memory_used = False
                self._note_working()

    def _open(self) -> None:
        """Open the file. A damaged one is replaced, and its messages are recovered."""
        with contextlib.suppress(OSError):
            self._watch()
        try:
            self._disk = open_disk(self.path, self._settings)
            self._watch()
        except _FAILURES as error:
            if is_damage(error, self.path):
                self._replace_file(error, set())
            else:
                self._postpone(explain(error))
        except (OSError, NotPermittedError) as error:
            self._postpone(explain(error))
        else:
            self._is_recovering = bool(list_unrecovered(self.path))
            self._note_working()

    def _watch(self) -> None:
        """Remember which file is open. Raises OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file = WatchedFile(self.path)

    def _note_working(self) -> None:
        """Note that the disk works."""
        if self._last_error:
            logger.info("outbox %s: works again", self.path)
        self._last_error = ""
        self._retry_at = 0.0

    def _replace_file(self, error: Exception, acknowledged: set[int]) -> None:
        """Rename a damaged file and create a new one; `_recover` moves the messages."""
        if self._monotonic() < self._replaced_at + _REPLACED_AT_MOST_EVERY:
            self._leave_file()
            self._postpone(explain(error))
            return
        self._replaced_at = self._monotonic()
        logger.error("outbox %s: %s; its undamaged messages move to a new file", self.path, error)
        try:
            with lock_for_repair(self.path):
                if self._is_current():  # otherwise another process has replaced it
                    set_aside(self.path)
                self._leave_file()
                self._disk = open_disk(self.path, self._settings)
                self._watch()
        except (*_FAILURES, OSError, NotPermittedError) as reason:
            self._postpone(explain(reason))
            return
        self._acknowledged = acknowledged
        self._is_recovering = True
        self._note_working()

    def _recover(self) -> None:
        """Move the messages of damaged files that this process or another has renamed."""
        if self._disk is None:
            return
        try:
            done = recover_all(self.path, self._disk, self._acknowledged)
        except (*_FAILURES, OSError, NotPermittedError) as error:
            names = ", ".join(list_unrecovered(self.path))
            self._postpone(f"{explain(error)}; messages in {names} are not recovered yet")
            return
        self._is_recovering = False
        self._acknowledged = set()
        for aside, count in done:
            logger.error(
                "outbox %s: %d messages are recovered from the damaged file, which is now %s",
                self.path,
                count,
                aside,
            )

    def _fail(self, error: Exception) -> None:
        """Use memory for a while after a failure of the disk; replace a damaged file at once."""
        if self._disk is not None and is_damage(error, self.path):
            self._disk.close()
            self._disk = None
            self._replace_file(error, {*self._unremoved})
        else:
            self._postpone(explain(error))

    def _postpone(self, reason: str) -> None:
        """Use memory until the disk is tried again. Logs a new reason."""
        self._retry_at = self._monotonic() + self.retry_after
        if reason != self._last_error:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self._last_error = reason
