"""The queue of one sink: on disk while the disk works, else in memory."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ccagent.log import logger
from ccagent.queue.entry import QueueEntry
from ccagent.queue.failures import ANY
from ccagent.queue.memory_queue import MemoryQueue
from ccagent.queue.queue_clock import read_uptime
from ccagent.queue.segment import DEAD, find_owner
from ccagent.queue.segment_directory import FILE_ERRORS
from ccagent.queue.segments import QueueSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.entry import QueuedMessage
    from ccagent.queue.failures import MessageChoice
    from ccagent.records.message import Message

_MEMORY_BYTES = 64 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_OVERHEAD = 100
"""About the bytes of a stored message beside its body."""

BATCH = 500
"""Maximum number of messages in one batch."""

SUFFIX = ".queue"
"""Suffix of the directory of a queue, after the quoted name of the sink."""

OLD_SUFFIX = ".outbox"
"""Suffix of the SQLite file of version 1.0."""


def make_directory_name(sink: str) -> str:
    """Return the name of the directory of a sink's queue."""
    return quote(sink, safe="") + SUFFIX


def make_segments(sink: str, settings: OutboxSettings) -> QueueSegments:
    """Return the segments of a sink's queue; they are not opened yet."""
    return QueueSegments(
        os.path.join(settings.directory, make_directory_name(sink)),
        find_owner(sink),
        max_bytes=settings.max_bytes,
        max_age=settings.max_age.seconds,
        durability=settings.durability,
    )


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
        self.path = ""
        self.retry_after = 10.0
        """Seconds until a failed disk is tried again."""
        self.refused = 0
        """Messages that were not queued, because the queue was full, since the start."""
        self._is_refusing = settings.when_full == "refuse-new"
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._lost = 0
        self._dropped = 0
        self._error = ""
        self._retry_at = 0.0
        self._reread_at = 0.0
        """When files that could not be read are tried again."""
        self._is_open = False
        self._is_converted = False
        self._segments = make_segments(name, settings)
        if settings.directory and not settings.memory:
            self.path = self._segments.path
        self._memory = MemoryQueue(min(settings.max_bytes, _MEMORY_BYTES), settings.max_age.seconds)
        self.check()

    @property
    def is_on_disk(self) -> bool:
        """True if the queue is configured to survive the process."""
        return bool(self.path)

    @property
    def error(self) -> str:
        """The reason why the disk can't be used now; empty if it can be used."""
        with self._lock:
            return self._error or self._segments.problem

    @property
    def notice(self) -> str:
        """The error, or files of other sinks or machines that were set aside; or empty."""
        with self._lock:
            aside = self._segments.set_aside
            if self.error or not aside:
                return self.error
            return (
                f"{len(aside)} files are of another sink or machine: {self.path}/{aside[0]}; "
                "`ccagent outbox` shows their messages"
            )

    @property
    def damaged(self) -> int:
        """The number of damaged parts of files, and of undecodable messages, since the start."""
        return self._segments.damaged

    @property
    def dropped(self) -> int:
        """The number of messages deleted because of the limits, since the start."""
        return self._dropped + self._memory.dropped

    @property
    def lost(self) -> int:
        """The number of messages that were only in memory when the queue was closed."""
        return self._lost

    def put(self, messages: Sequence[Message]) -> bool:
        """Store messages. Return False if they were refused because the queue is full."""
        with self._lock:
            if self._error or len(self._memory) or (self.is_on_disk and not self._is_open):
                self.check()
            is_disk_usable = self._is_usable() and not len(self._memory)
            if self._is_refusing:
                size = sum(len(message.body) + _OVERHEAD for message in messages)
                place = self._segments if is_disk_usable else self._memory
                if not place.has_room(size):
                    self._note_refused(len(messages))
                    return False
            before = self._memory.dropped
            kept = self._put_on_disk(messages) if is_disk_usable else messages
            stored, uptime = time.time(), read_uptime()
            self._memory.put(QueueEntry(stored, uptime, message) for message in kept)
            self._log_dropped(self._memory.dropped - before)
            return True

    def next_batch(
        self, count: int = BATCH, choice: MessageChoice = ANY, *, from_disk: bool = True
    ) -> list[QueuedMessage]:
        """Return at most `count` of the oldest messages of a choice, those on disk first."""
        with self._lock:
            if self._is_open and from_disk:
                try:
                    batch = self._segments.read(count, _BATCH_BYTES, choice)
                except FILE_ERRORS as error:
                    self._fail(error)
                else:
                    if batch:
                        return batch
            return self._memory.read(count, _BATCH_BYTES, choice)

    def remove(self, numbers: Collection[int]) -> None:
        """Delete acknowledged messages. On disk this needs no space."""
        with self._lock:
            self._memory.remove(numbers)
            if self._segments.mark(numbers):
                self._retry_at = 0.0  # a full disk may have room now

    def reject(self, number: int, reason: str) -> None:
        """Turn a message into a dead letter."""
        with self._lock:
            for entry in self._memory.remove([number]):
                self._keep_letter(entry, reason)
            try:
                self._segments.reject(number, reason, time.time())
            except FILE_ERRORS as error:
                self._fail(error)

    def add_dead_letter(self, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        now = time.time()
        with self._lock:
            try:
                if self._is_open:
                    self._segments.add_dead_letter(message, reason, now, now)
                    return
            except FILE_ERRORS as error:
                self._fail(error)
            self._keep_letter(QueueEntry(now, read_uptime(), message), reason)

    def has_work(self) -> bool:
        """Return whether a message can be sent, also one that another process has left."""
        with self._lock:
            if len(self._memory) or self._segments.has_messages():
                return True
            self.check()
            return bool(len(self._memory)) or self._segments.has_messages()

    def is_blocked(self) -> bool:
        """Return whether another process sends messages of this queue."""
        with self._lock:
            return self._segments.is_blocked()

    def count(self) -> int:
        """Return the number of queued messages."""
        with self._lock:
            return len(self._memory) + self._segments.count()

    def count_in_memory(self) -> int:
        """Return the number of messages that would be lost with the process."""
        with self._lock:
            return len(self._memory)

    def size(self) -> int:
        """Return the bytes of the queued messages."""
        with self._lock:
            return self._memory.size + self._segments.size()

    def read_dead_letters(self) -> list[QueueEntry]:
        """Return the dead letters in memory. `ccagent outbox` lists those on disk."""
        with self._lock:
            return [*self._memory.letters]

    def check(self) -> None:
        """Look for new and removed files, and for a disk that works again."""
        with self._lock:
            if not self.is_on_disk:
                return
            is_due = self._monotonic() >= self._retry_at
            try:
                if is_due and not self._is_open:
                    self._open()
                elif self._segments.problem and self._monotonic() >= self._reread_at:
                    self._reread_at = self._monotonic() + self.retry_after
                    self._rescue(self._segments.open())
                elif self._is_open:
                    self._rescue(self._segments.look())
                if self._is_usable():
                    self._convert()
                    self._move_to_disk()
            except FILE_ERRORS as error:
                self._fail(error)

    def close(self) -> None:
        """Close the files. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if len(self._memory):
                self._retry_at = 0.0
                self.check()
            self._segments.close()
            self._is_open = False
            self._lost = len(self._memory)
            self._memory = MemoryQueue(0, 0.0)

    def _is_usable(self) -> bool:
        """Return whether the disk is open and no pause is running."""
        return self._is_open and self._monotonic() >= self._retry_at

    def _open(self) -> None:
        """Open the files."""
        self._retry_at = self._monotonic() + self.retry_after
        self._rescue(self._segments.open())
        self._is_open = True
        self._retry_at = 0.0

    def _convert(self) -> None:
        """Convert the file of an earlier version, once."""
        old = self.path.removesuffix(SUFFIX) + OLD_SUFFIX
        if not self._is_converted and os.path.lexists(old):
            from ccagent.queue.conversion import convert

            convert(old, self._segments)
        self._is_converted = True

    def _put_on_disk(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Store messages on disk. Return those that must be kept in memory."""
        stored, done, before = time.time(), 0, self._segments.dropped
        try:
            clock = self._segments.now().clock
            entries = [QueueEntry(stored, clock, message) for message in messages]
            while done < len(entries):
                done += self._segments.append(entries[done:] if done else entries)
            if self._segments.is_removed():
                self._rescue(self._segments.look())
            self._note_working()
        except FILE_ERRORS as error:
            self._fail(error)
        self._dropped += self._segments.dropped - before
        self._log_dropped(self._segments.dropped - before)
        return messages[done:]

    def _rescue(self, rescued: list[QueueEntry]) -> None:
        """Keep messages of removed files in memory, until they are moved to new files."""
        if rescued:
            offset = read_uptime() - self._segments.now().clock
            self._memory.put(_shift(entry, offset) for entry in rescued)
            logger.error(
                "outbox %s: the files were removed or replaced; %d messages are moved to new ones",
                self.path,
                len(rescued),
            )

    def _move_to_disk(self) -> None:
        """Move messages from memory to the disk."""
        offset = self._segments.now().clock - read_uptime()
        while batch := self._memory.read(BATCH, _BATCH_BYTES, ANY):
            done = self._segments.append([_shift(each.entry, offset) for each in batch])
            self._memory.remove([each.number for each in batch[:done]])
        while self._memory.letters:
            self._segments.append([_shift(self._memory.letters[0], offset)], DEAD)
            self._memory.drop_first_letter()
        self._note_working()

    def _keep_letter(self, entry: QueueEntry, reason: str) -> None:
        """Keep a dead letter in memory."""
        self._memory.put([msgspec.structs.replace(entry, reason=reason, rejected=time.time())])

    def _fail(self, error: Exception) -> None:
        """Pause after a failure, and log a new reason."""
        reason = getattr(error, "strerror", None) or str(error)
        self._retry_at = self._monotonic() + self.retry_after
        if reason != self._error:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self._error = reason

    def _note_working(self) -> None:
        """Note that the disk works."""
        if self._error:
            logger.info("outbox %s: works again", self.path)
        self._error = ""
        self._retry_at = 0.0

    def _note_refused(self, count: int) -> None:
        """Count and log messages that were not queued."""
        self.refused += count
        logger.error(
            "sink %s: the queue is full: new messages are refused; see outbox.when-full",
            self.name,
            key=f"refused {self.name}",
        )

    def _log_dropped(self, count: int) -> None:
        """Log messages that were deleted to make room."""
        if count:
            logger.error(
                "sink %s: the queue is full or too old: the %d oldest messages are dropped; "
                "see outbox.max-bytes and outbox.max-age",
                self.name,
                count,
            )


def _shift(entry: QueueEntry, offset: float) -> QueueEntry:
    """Return an entry by another clock, `offset` seconds ahead."""
    return msgspec.structs.replace(entry, clock=entry.clock + offset)
