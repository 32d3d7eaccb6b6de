"""The queue of one sink: on disk while the disk works, else in memory."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ccagent.log import logger
from ccagent.queue.entry import QueueEntry
from ccagent.queue.failures import ANY
from ccagent.queue.segment import DEAD, FILE_ERRORS, WAITING, describe_error, find_owner
from ccagent.queue.segment_directory import SegmentDirectory
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
"""Suffix of the SQLite file of the version before."""


def make_directory_name(sink: str) -> str:
    """Return the name of the directory of a sink's queue."""
    return quote(sink, safe="") + SUFFIX


def make_segments(sink: str, settings: OutboxSettings) -> SegmentDirectory:
    """Return the segments of a sink's queue; they are not opened yet."""
    path = os.path.join(settings.directory, make_directory_name(sink))
    return SegmentDirectory(path, find_owner(sink), settings)


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
        self.retry_after = 10.0
        """Seconds until a failed disk is tried again."""
        self.refused = 0
        """Messages that were not queued, because the queue was full, since the start."""
        self.dropped = 0
        """Messages deleted because of the limits, since the start."""
        self.lost = 0
        """Messages that were only in memory when the queue was closed."""
        self._is_refusing = settings.when_full == "refuse-new"
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._error = ""
        self._retry_at = 0.0
        self._reread_at = 0.0
        """When a directory or files that could not be read are tried again."""
        self._is_open = False
        self._disk = make_segments(name, settings)
        self.path = self._disk.path if settings.directory and not settings.memory else ""
        """Directory of the queue; empty if it is in memory only."""
        self._old = self.path.removesuffix(SUFFIX) + OLD_SUFFIX if self.path else ""
        """File of the version before; empty after its conversion."""
        limit = min(settings.max_bytes, _MEMORY_BYTES)
        self._memory = QueueSegments(
            self._disk.owner, msgspec.structs.replace(settings, max_bytes=limit)
        )
        self.check()

    @property
    def error(self) -> str:
        """The reason why the disk can't be used now; empty if it can be used."""
        with self._lock:
            return self._error or self._disk.problem

    @property
    def notice(self) -> str:
        """The error, or files of other sinks or machines that were set aside; or empty."""
        with self._lock:
            aside = self._disk.set_aside
            if self.error or not aside:
                return self.error
            return (
                f"{len(aside)} files are of another sink or machine: {self.path}/{aside[0]}; "
                "`ccagent outbox` shows their messages"
            )

    @property
    def damaged(self) -> int:
        """The number of damaged parts of files, and of undecodable messages, since the start."""
        return self._disk.damaged

    def put(self, messages: Sequence[Message]) -> bool:
        """Store messages. Return False if they were refused because the queue is full."""
        with self._lock:
            if self._error or self._memory.has_messages() or (self.path and not self._is_open):
                self.check()
            is_on_disk = self._is_usable() and not self._memory.has_messages()
            if self._is_refusing:
                size = sum(len(message.body) + _OVERHEAD for message in messages)
                if not (self._disk if is_on_disk else self._memory).has_room(size):
                    self.refused += len(messages)
                    logger.error(
                        "sink %s: the queue is full: new messages are refused; "
                        "see outbox.when-full",
                        self.name,
                        key=f"refused {self.name}",
                    )
                    return False
            done = self._put_into(self._disk, messages) if is_on_disk else 0
            if done < len(messages):
                self._put_into(self._memory, messages[done:])
            return True

    def next_batch(
        self, count: int = BATCH, choice: MessageChoice = ANY, *, from_disk: bool = True
    ) -> list[QueuedMessage]:
        """Return at most `count` of the oldest messages of a choice, those on disk first."""
        with self._lock:
            if self._is_open and from_disk:
                try:
                    if batch := self._disk.read(count, _BATCH_BYTES, choice):
                        return batch
                except FILE_ERRORS as error:
                    self._fail(error)
            return self._memory.read(count, _BATCH_BYTES, choice)

    def remove(self, numbers: Collection[int]) -> None:
        """Delete acknowledged messages. On disk this needs no space."""
        with self._lock:
            self._memory.mark(numbers)
            if self._disk.mark(numbers):
                self._retry_at = 0.0  # a full disk may have room now

    def reject(self, number: int, reason: str) -> None:
        """Turn a message into a dead letter."""
        with self._lock:
            try:
                for segments in (self._memory, self._disk):
                    segments.reject(number, reason, time.time())
            except FILE_ERRORS as error:
                self._fail(error)

    def add_dead_letter(self, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        with self._lock:
            for segments in (self._disk, self._memory) if self._is_open else (self._memory,):
                now = time.time()
                letter = QueueEntry(now, segments.now().clock, message, reason, now)
                try:
                    segments.append([letter], DEAD)
                except FILE_ERRORS as error:
                    self._fail(error)
                else:
                    return

    def has_work(self) -> bool:
        """Return whether a message can be sent, also one that another process has left."""
        with self._lock:
            if not (self._memory.has_messages() or self._disk.has_messages()):
                self.check()
            return self._memory.has_messages() or self._disk.has_messages()

    def is_blocked(self) -> bool:
        """Return whether another process sends messages of this queue."""
        with self._lock:
            return self._disk.is_blocked()

    def count(self) -> int:
        """Return the number of queued messages."""
        with self._lock:
            return self._memory.count() + self._disk.count()

    def count_in_memory(self) -> int:
        """Return the number of messages that would be lost with the process."""
        with self._lock:
            return self._memory.count()

    def size(self) -> int:
        """Return the bytes of the queued messages."""
        with self._lock:
            return self._memory.size() + self._disk.size()

    def read_dead_letters(self) -> list[QueueEntry]:
        """Return the dead letters in memory. `ccagent outbox` lists those on disk."""
        with self._lock:
            letters = self._memory.read(sys.maxsize, sys.maxsize, ANY, is_dead=True)
            return [letter.entry for letter in letters]

    def check(self) -> None:
        """Look for new and removed files, and for a disk that works again."""
        with self._lock:
            if not self.path:
                return
            now = self._monotonic()
            is_failed = not self._is_open or self._disk.problem
            try:
                if is_failed and now >= self._reread_at:
                    self._reread_at = now + self.retry_after
                    self._rescue(self._disk.open())
                    self._is_open, self._retry_at = True, 0.0
                elif self._is_open:
                    self._rescue(self._disk.look())
                if self._is_usable() and (self._error or self._memory.total_bytes() or self._old):
                    self._move_to_disk()
            except FILE_ERRORS as error:
                self._fail(error)

    def close(self) -> None:
        """Close the files. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if self._memory.has_messages():
                self._retry_at = self._reread_at = 0.0
                self.check()
            self._disk.close()
            self._is_open = False
            self.lost = self._memory.count()
            self._memory.close()

    def _is_usable(self) -> bool:
        """Return whether the disk is open and no pause is running."""
        return self._is_open and self._monotonic() >= self._retry_at

    def _put_into(self, segments: QueueSegments, messages: Sequence[Message]) -> int:
        """Store messages on disk or in memory. Return the number of the stored ones."""
        stored, done = time.time(), 0
        try:
            clock = segments.now().clock
            entries = [QueueEntry(stored, clock, message) for message in messages]
            while done < len(entries):
                done += self._append(segments, entries[done:] if done else entries)
            if segments is self._disk:
                self._rescue(self._disk.look() if self._disk.is_removed() else [])
                self._note_working()
        except FILE_ERRORS as error:
            self._fail(error)
        return done

    def _append(
        self, segments: QueueSegments, entries: Sequence[QueueEntry], state: int = WAITING
    ) -> int:
        """Store the first of some entries, see `QueueSegments`; count and log dropped ones."""
        before = segments.dropped
        try:
            return segments.append(entries, state)
        finally:
            if dropped := segments.dropped - before:
                self.dropped += dropped
                logger.error(
                    "sink %s: the queue is full or too old: the %d oldest messages are dropped; "
                    "see outbox.max-bytes and outbox.max-age",
                    self.name,
                    dropped,
                )

    def _rescue(self, rescued: list[QueueEntry]) -> None:
        """Keep messages of removed files in memory, until they are moved to new files."""
        if not rescued:
            return
        offset = self._memory.now().clock - self._disk.now().clock
        for entry in rescued:
            state = DEAD if entry.reason else WAITING
            self._append(self._memory, [_shift(entry, offset)], state)
        logger.error(
            "outbox %s: the files were removed or replaced; %d messages are moved to new ones",
            self.path,
            len(rescued),
        )

    def _move_to_disk(self) -> None:
        """Move messages from memory, and from the file of the version before, to the disk."""
        if self._old and os.path.lexists(self._old):
            from ccagent.queue.conversion import convert

            convert(self._old, self._disk)
        self._old = ""
        offset = self._disk.now().clock - self._memory.now().clock
        for state in (WAITING, DEAD):
            while batch := self._memory.read(BATCH, _BATCH_BYTES, ANY, is_dead=state == DEAD):
                entries = [_shift(each.entry, offset) for each in batch]
                done = self._append(self._disk, entries, state)
                self._memory.mark([each.number for each in batch[:done]])
        self._note_working()

    def _fail(self, error: Exception) -> None:
        """Pause after a failure, and log a new reason."""
        reason = describe_error(error)
        self._retry_at = self._monotonic() + self.retry_after
        if reason != self._error:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self._error = reason

    def _note_working(self) -> None:
        """Note that the disk works."""
        if self._error:
            logger.info("outbox %s: works again", self.path)
            self._error, self._retry_at = "", 0.0


def _shift(entry: QueueEntry, offset: float) -> QueueEntry:
    """Return an entry by another clock, `offset` seconds ahead."""
    return msgspec.structs.replace(entry, clock=entry.clock + offset)
