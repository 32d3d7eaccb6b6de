"""The queue of one sink: its messages in order, their states, limits, and dead letters.

Messages are on disk while the disk works, else in memory. The SQLite file of the version before is
read once, then deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ccagent.errors import EncodingError, UnparsableError
from ccagent.log import logger
from ccagent.machine.clock import Clock
from ccagent.queue.failures import ANY
from ccagent.queue.record_log import FILE_ERRORS, describe_error, frame
from ccagent.queue.segment import (
    DEAD,
    DONE,
    WAITING,
    QueuedMessage,
    QueueEntry,
    decode_entry,
    encode_entry,
    find_owner,
)
from ccagent.queue.segment_directory import SegmentDirectory, read_files
from ccagent.service.private_files import check_file, open_private

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.failures import MessageChoice
    from ccagent.queue.segment import QueueOwner, QueueSegment
    from ccagent.records.message import Message

_BATCH_BYTES = 1024 * 1024
_OVERHEAD = 100
"""About the bytes of a stored message beside its body."""
_OFFSET_BITS = 40
_POSITION = (1 << _OFFSET_BITS) - 1
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""
_MEMORY_BYTES = 64 * 1024 * 1024
"""Maximum bytes in memory."""
_NOT_OPENED = "not opened yet"

BATCH = 500
"""Maximum number of messages in one batch."""

SUFFIX = ".queue"
"""Suffix of the directory of a queue, after the quoted name of the sink."""

OLD_SUFFIX = ".outbox"
"""Suffix of the SQLite file of the version before."""

_HEAD = struct.calcsize("<4sII")
"""Bytes of a stored message before its content: magic number, length, CRC-32."""
_MESSAGES = """
SELECT * FROM (SELECT entry, '', 0 FROM messages ORDER BY number)
UNION ALL SELECT * FROM (SELECT entry, reason, rejected FROM dead_letters ORDER BY number)
"""
_SIDE_FILES = ("-wal", "-shm", ".lock", ".repair", "")


def make_directory_name(sink: str) -> str:
    """Return the name of the directory of a sink's queue."""
    return quote(sink, safe="") + SUFFIX


def find_old_file(path: str) -> str:
    """Return the file of the version before. path: directory of the queue."""
    return path.removesuffix(SUFFIX) + OLD_SUFFIX


class Queue(SegmentDirectory):
    """Keeps the messages of one sink, oldest first, and its dead letters. Threads may share it.

    Above `max_bytes` and `max_age` the oldest dead letters, then the oldest messages are deleted
    and counted, in whole segments where possible. Only `append` raises an exception for a failure
    of the disk. The others log it, and messages are kept in memory until the disk works again.

    owner, clock: those of this machine, unless a test gives others.
    """

    def __init__(
        self,
        name: str,
        settings: OutboxSettings,
        *,
        owner: QueueOwner | None = None,
        clock: Clock | None = None,
    ) -> None:
        is_on_disk = settings.directory and not settings.memory
        path = os.path.join(settings.directory, make_directory_name(name)) if is_on_disk else ""
        super().__init__(path, owner or find_owner(name), settings, clock or Clock())
        self.name = name
        self.retry_after = 10.0
        """Seconds until a failed disk, or a file that could not be read, is tried again."""
        self.dropped = 0
        """Messages and dead letters deleted because of the limits, since the start."""
        self.refused = 0
        """Messages that were not queued, because the queue was full, since the start."""
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._expiry = 0.0
        """When the ages are checked next, by the queue's clock."""
        if path:
            self.failure = _NOT_OPENED
            self.check()

    @property
    def notice(self) -> str:
        """The error, or files of other sinks or machines that were set aside; or empty."""
        if self.error or not self.set_aside:
            return self.error
        return (
            f"{len(self.set_aside)} files are of another sink or machine: "
            f"{self.path}/{self.set_aside[0]}; `ccagent outbox` shows their messages"
        )

    def put(self, messages: Sequence[Message]) -> bool:
        """Store messages. Return False if they were refused because the queue is full."""
        with self._lock:
            if self.failure:
                self.check()
            stored, clock = time.time(), self.now().clock
            if clock >= self._expiry:
                self._drop_expired(clock)
            if self._settings.when_full == "refuse-new":
                size = sum(len(message.body) + _OVERHEAD for message in messages)
                if any(excess > 0 for _, excess in self._excesses(size)):
                    self.refused += len(messages)
                    logger.error(
                        "sink %s: the queue is full: new messages are refused; "
                        "see outbox.when-full",
                        self.name,
                        key=f"refused {self.name}",
                    )
                    return False
            for message in messages:
                self._append(QueueEntry(stored, clock, message))
            written = self._written.get(False)
            if written is not None and written.path and written.file.is_removed():
                self.check()
            return True

    def append(self, entry: QueueEntry, state: int = WAITING) -> None:
        """Store a message or dead letter whose clock is that of now.

        Older messages are deleted to make room, and counted in `dropped`. Raise EncodingError for a
        message that can't be stored. Raise OSError or NotPermittedError if the disk fails.
        """
        try:
            record = frame(encode_entry(entry), seed=self._seed, trailer=bytes((state,)))
        except (ValueError, TypeError, OverflowError) as error:
            raise EncodingError(f"a message can't be stored: {error}") from error
        self._make_room(len(record) + self._header_size)
        segment = self._find_writable(len(record), is_dead=state == DEAD)
        try:
            segment.append(record, entry, is_synced=self._is_synced)
        except OSError:
            self._seal(segment)
            raise

    def next_batch(
        self, count: int = BATCH, choice: MessageChoice = ANY, *, in_memory: bool = False
    ) -> list[QueuedMessage]:
        """Return the oldest messages: at most `count` and about 1 MiB, but at least one.

        No file follows one that another process has locked, because its messages are older.
        in_memory: leave out all files.
        """
        found: list[QueuedMessage] = []
        size = _BATCH_BYTES
        with self._lock:
            for segment in self._in_order():
                in_memory |= segment.is_elsewhere
                if segment.path and in_memory:
                    continue
                for position, length in self._select(segment, choice):
                    size -= length
                    if len(found) >= count or (found and size < 0):
                        return found
                    entry = self._read_message(segment, position)
                    if entry is not None:
                        number = segment.number << _OFFSET_BITS | position
                        found.append(QueuedMessage(number, entry.message))
        return found

    def remove(self, numbers: Collection[int]) -> None:
        """Delete acknowledged messages. On disk this needs no space."""
        with self._lock:
            before = len(self._segments)
            for number in numbers:
                self._mark(number, DONE)
            if len(self._segments) < before:
                self._retry_at = 0.0  # a full disk may have room now

    def reject(self, number: int, reason: str) -> None:
        """Turn a message into a dead letter, without its reason if there is no room for it."""
        with self._lock:
            segment, position = self._segments.get(number >> _OFFSET_BITS), number & _POSITION
            if segment is None or not self._ensure_open(segment) or position not in segment.index:
                return
            entry = self._read_message(segment, position)
            if entry is None:
                return
            state = DEAD
            try:
                if not (segment.path and self.failure):  # a file outlives a dead letter in memory
                    now, clock = time.time(), self.now().clock
                    self.append(QueueEntry(entry.stored, clock, entry.message, reason, now), DEAD)
                    state = DONE
            except FILE_ERRORS as error:
                self._fail(error)
            finally:
                self._mark(number, state)

    def add_dead_letter(self, message: Message, reason: str) -> None:
        """Store a dead letter that is a part of a message."""
        with self._lock:
            now = time.time()
            self._append(QueueEntry(now, self.now().clock, message, reason, now), DEAD)

    def has_work(self) -> bool:
        """Return whether a message can be sent, also one that another process has left."""
        with self._lock:
            if not self._has_messages():
                self.check()
            return self._has_messages()

    def is_blocked(self) -> bool:
        """Return whether another process sends older messages, or those of this queue."""
        return any(segment.is_elsewhere for segment in self._in_order())

    def count(self, *, in_memory: bool = False) -> int:
        """Return the number of waiting messages, also of those that another process sends.

        in_memory: leave out all files; these messages are lost with the process. Valid also after
        `close`.
        """
        return sum(each.count for each in self._in_order() if not (in_memory and each.path))

    def size(self) -> int:
        """Return the bytes of the waiting messages."""
        return sum(segment.bytes for segment in self._in_order())

    def check(self) -> None:
        """Look for new and removed files, and for a disk that works again."""
        with self._lock:
            is_due = self._clock.monotonic() >= self._retry_at
            if not self.path or (self.failure and not is_due):
                return
            failure, self.failure = self.failure, ""
            try:
                if failure or (is_due and self.error):
                    self._retry_at = self._clock.monotonic() + self.retry_after
                    self.look(is_retry=True)
                    self._convert_old_file()
                    if failure not in ("", _NOT_OPENED):
                        logger.info("outbox %s: works again", self.path)
                else:
                    self.look()
            except FILE_ERRORS as error:
                self.failure = failure
                self._fail(error)

    def close(self) -> None:
        """Close the files. Messages in memory are moved to the disk if that works."""
        with self._lock:
            if self.count(in_memory=True):
                self._retry_at = 0.0
                self.check()
            self._close_files()

    def _append(self, entry: QueueEntry, state: int = WAITING) -> None:
        """Store a message or dead letter, in memory if the disk fails."""
        try:
            self.append(entry, state)
        except FILE_ERRORS as error:
            self._fail(error)
            self.append(entry, state)

    def _convert_old_file(self) -> None:
        """Store the messages of the version before, whose age starts again."""
        old = find_old_file(self.path)
        if not os.path.lexists(old):
            return
        files = read_files(self.path, self.owner).values()
        stored = (message.entry for content in files for message in content.messages)
        known = {entry.message.id for entry in stored if entry is not None}
        for entry in take_messages(old):
            if entry.message.id not in known:  # it was interrupted before
                state = DEAD if entry.rejected else WAITING
                self.append(msgspec.structs.replace(entry, clock=self.now().clock), state)
        logger.info("outbox %s: its messages were moved to %s", old, self.path)

    def _fail(self, error: Exception) -> None:
        """Keep messages in memory for a while after a failure, and log a new reason."""
        reason = describe_error(error)
        self._retry_at = self._clock.monotonic() + self.retry_after
        if reason != self.failure:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self.failure = reason

    def _has_messages(self) -> bool:
        """Return whether a message is waiting that no other process sends."""
        return any(each.count and not each.is_elsewhere for each in self._in_order())

    def _mark(self, number: int, state: int) -> None:
        """Change the state of a message, and delete a finished segment."""
        segment = self._segments.get(number >> _OFFSET_BITS)
        if segment is None:
            return
        self._ensure_open(segment)
        segment.mark(number & _POSITION, state)
        is_kept = self._is_written(segment) and segment.file.size < self._limit // 4
        if segment.is_finished and segment.file.is_open and not is_kept:
            self._delete(segment)

    def _select(self, segment: QueueSegment, choice: MessageChoice) -> Iterator[tuple[int, int]]:
        """Yield position and size of the chosen messages of a segment."""
        number, kinds, numbers = choice
        if number is not None and number >> _OFFSET_BITS != segment.number:
            return
        if not any(count and topic not in kinds for topic, count in segment.topics.items()):
            return
        if segment.problem or not self._ensure_open(segment):
            return
        base = segment.number << _OFFSET_BITS
        for position, message in [*segment.index.items()]:
            each = base | position
            if position not in segment.index:  # the file failed meanwhile
                return
            if message.topic not in kinds and each not in numbers and number in (None, each):
                yield position, message.size

    def _read_message(self, segment: QueueSegment, position: int) -> QueueEntry | None:
        """Return a message; None if it is damaged, can't be read, or was deleted by a command."""
        entry = None
        try:
            entry = segment.read(position, self._seed)
        except OSError as error:
            self._note_problem(segment, error)
            return None
        except UnparsableError as error:
            self.damaged += 1
            logger.error("outbox %s: a message at %d is %s", segment.path, position, error)
        if entry is None:
            self._mark(segment.number << _OFFSET_BITS | position, DONE)
        return entry

    def _excesses(self, size: int) -> Iterator[tuple[list[QueueSegment], int]]:
        """Yield the segments under each limit, and by how many bytes `size` more exceed it."""
        segments = [*self._segments.values()]
        yield segments, sum(each.file.size for each in segments) + size - self._settings.max_bytes
        if not self.path or self.failure:
            segments = [each for each in self._segments.values() if not each.path]
            yield segments, sum(each.file.size for each in segments) + size - _MEMORY_BYTES

    def _make_room(self, size: int) -> None:
        """Delete the oldest segments, those of dead letters first, until `size` more bytes fit."""
        for segments, excess in self._excesses(size):
            freed = 0
            letters_first = sorted(segments, key=lambda each: not each.is_dead)
            for segment in letters_first if excess > 0 else ():
                if freed < excess and not segment.is_elsewhere:
                    freed += segment.file.size
                    self._drop(segment)

    def _drop_expired(self, now: float) -> None:
        """Delete expired messages and dead letters, and count them. now: of the queue's clock."""
        max_age = self._settings.max_age.seconds
        self._expiry = now + max_age / _EXPIRY_STEPS
        oldest = now - max_age
        for segment in [*self._segments.values()]:
            if segment.newest < oldest and not segment.is_elsewhere and not segment.is_finished:
                self._drop(segment)
        first = next((each for each in self._in_order() if each.count), None)
        if first is not None and not first.is_elsewhere and self._ensure_open(first):
            clocks = ((position, each.clock) for position, each in first.index.items())
            expired = [*takewhile(lambda item: item[1] < oldest, clocks)]
            for position, _ in expired:
                first.mark(position, DONE)
            self._count_dropped(len(expired))

    def _drop(self, segment: QueueSegment) -> None:
        """Delete a segment with its messages, and count them."""
        count = segment.count + segment.dead
        if segment.is_dead or self._ensure_open(segment):
            self._delete(segment)
            if segment.number not in self._segments:  # its file could be deleted
                self._count_dropped(count)

    def _count_dropped(self, count: int) -> None:
        """Count and log dropped messages. Count them also in the file that is written."""
        if not count:
            return
        self.dropped += count
        self.all_dropped += count
        logger.error(
            "sink %s: the queue is full or too old: the %d oldest messages are dropped; "
            "see outbox.max-bytes and outbox.max-age",
            self.name,
            count,
        )
        written = self._written.get(False)
        if written is not None:
            written.count_dropped(self.all_dropped)


def take_messages(path: str) -> Iterator[QueueEntry]:
    """Yield the messages and dead letters of the version before. Delete its file after the last.

    A damaged file is renamed after its readable messages. Raise OSError or NotPermittedError; the
    file then stays.
    """
    import sqlite3

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
