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
from ccagent.queue.record_log import FILE_ERRORS, describe_error
from ccagent.queue.segment import DEAD, WAITING, find_owner
from ccagent.queue.segments import QueueSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.entry import QueuedMessage
    from ccagent.queue.failures import MessageChoice
    from ccagent.records.message import Message

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


def find_old_file(path: str) -> str:
    """Return the file of the version before. path: directory of the queue."""
    return path.removesuffix(SUFFIX) + OLD_SUFFIX


def make_segments(sink: str, settings: OutboxSettings) -> QueueSegments:
    """Return the segments of a sink's queue; they are not opened yet."""
    directory = settings.directory
    path = os.path.join(directory, make_directory_name(sink)) if directory else ""
    return QueueSegments(path, find_owner(sink), settings)


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
        """Seconds until a failed disk, or a file that could not be read, is tried again."""
        self.refused = 0
        """Messages that were not queued, because the queue was full, since the start."""
        self.lost = 0
        """Messages that were only in memory when the queue was closed."""
        self._is_refusing = settings.when_full == "refuse-new"
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._failure = ""
        """The last logged failure of the disk; empty while it works."""
        if settings.memory:
            settings = msgspec.structs.replace(settings, directory="")
        self._segments = make_segments(name, settings)
        self.path = self._segments.path
        """Directory of the queue; empty if it is in memory only."""
        if self.path:
            self._segments.failure = "not opened yet"
        self.check()

    @property
    def error(self) -> str:
        """The reason why the disk can't be used now; empty if it can be used."""
        with self._lock:
            return self._segments.failure or self._segments.problem

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
        return self._segments.dropped - self._segments.dropped_before

    def put(self, messages: Sequence[Message]) -> bool:
        """Store messages. Return False if they were refused because the queue is full."""
        with self._lock:
            if self._segments.failure:
                self.check()
            if self._is_refusing:
                size = sum(len(message.body) + _OVERHEAD for message in messages)
                if not self._segments.has_room(size):
                    self.refused += len(messages)
                    logger.error(
                        "sink %s: the queue is full: new messages are refused; "
                        "see outbox.when-full",
                        self.name,
                        key=f"refused {self.name}",
                    )
                    return False
            stored, clock, done = time.time(), self._segments.now().clock, 0
            entries = [QueueEntry(stored, clock, message) for message in messages]
            while done < len(entries):
                done += self._append(entries[done:] if done else entries)
            if self._segments.is_removed():
                self.check()
            return True

    def next_batch(
        self, count: int = BATCH, choice: MessageChoice = ANY, *, in_memory: bool = False
    ) -> list[QueuedMessage]:
        """Return at most `count` of the oldest messages of a choice; in_memory: none of files."""
        with self._lock:
            return self._segments.read(count, _BATCH_BYTES, choice, in_memory=in_memory)

    def remove(self, numbers: Collection[int]) -> None:
        """Delete acknowledged messages. On disk this needs no space."""
        with self._lock:
            if self._segments.mark(numbers):
                self._retry_at = 0.0  # a full disk may have room now

    def reject(self, number: int, reason: str) -> None:
        """Turn a message into a dead letter."""
        with self._lock:
            try:
                self._segments.reject(number, reason, time.time())
            except FILE_ERRORS as error:
                self._fail(error)

    def add_dead_letter(self, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        with self._lock:
            now = time.time()
            self._append([QueueEntry(now, self._segments.now().clock, message, reason, now)], DEAD)

    def has_work(self) -> bool:
        """Return whether a message can be sent, also one that another process has left."""
        with self._lock:
            if not self._segments.has_messages():
                self.check()
            return self._segments.has_messages()

    def is_blocked(self) -> bool:
        """Return whether another process sends messages of this queue."""
        with self._lock:
            return self._segments.is_blocked()

    def count(self) -> int:
        """Return the number of queued messages."""
        with self._lock:
            return self._segments.count()

    def count_in_memory(self) -> int:
        """Return the number of messages that would be lost with the process."""
        with self._lock:
            return self._segments.count(in_memory=True)

    def size(self) -> int:
        """Return the bytes of the queued messages."""
        with self._lock:
            return self._segments.size()

    def check(self) -> None:
        """Look for new and removed files, and for a disk that works again."""
        with self._lock:
            if not self.path:
                return
            now = self._monotonic()
            try:
                if self.error and now >= self._retry_at:
                    self._retry_at = now + self.retry_after
                    self._try_again()
                elif not self._segments.failure:
                    self._segments.look()
            except FILE_ERRORS as error:
                self._fail(error)

    def close(self) -> None:
        """Close the files. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if self._segments.count(in_memory=True):
                self._retry_at = 0.0
                self.check()
            self.lost = self._segments.count(in_memory=True)
            self._segments.close()

    def _append(self, entries: Sequence[QueueEntry], state: int = WAITING) -> int:
        """Store the first of some entries, in memory if the disk fails. Return their number."""
        try:
            return self._segments.append(entries, state)
        except FILE_ERRORS as error:
            self._fail(error)
            return self._segments.append(entries, state)

    def _try_again(self) -> None:
        """Open the files and move messages to them, also those of the version before."""
        self._segments.open()
        old = find_old_file(self.path)
        if os.path.lexists(old):
            from ccagent.queue.conversion import convert

            convert(old, self._segments)
        if self._failure:
            logger.info("outbox %s: works again", self.path)
            self._failure = ""

    def _fail(self, error: Exception) -> None:
        """Keep messages in memory for a while after a failure, and log a new reason."""
        reason = describe_error(error)
        self._retry_at = self._monotonic() + self.retry_after
        if reason != self._failure:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self._failure = self._segments.failure = reason
