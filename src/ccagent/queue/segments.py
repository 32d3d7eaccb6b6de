"""The messages of one queue in segments: order, states, limits, dead letters."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError, UnparsableError
from ccagent.log import logger
from ccagent.queue.entry import QueuedMessage, QueueEntry, encode_entry
from ccagent.queue.record_log import frame
from ccagent.queue.segment import DEAD, DONE, WAITING
from ccagent.queue.segment_directory import SegmentDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ccagent.queue.failures import MessageChoice
    from ccagent.queue.segment import QueueSegment

_OFFSET_BITS = 40
_POSITION = (1 << _OFFSET_BITS) - 1
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""
_MEMORY_BYTES = 64 * 1024 * 1024
"""Maximum bytes in memory."""


class QueueSegments(SegmentDirectory):
    """The messages of one queue, oldest first, and its dead letters.

    Above `max_bytes` and `max_age` the oldest dead letters, then the oldest messages are deleted
    and counted, in whole segments where possible.
    """

    _expiry = 0.0
    """When the ages are checked next, by the queue's clock."""

    def append(self, entries: Sequence[QueueEntry], state: int = WAITING) -> int:
        """Store the first of some entries, as many as fit into one segment. Return their number.

        Older messages are deleted to make room, and counted in `dropped`. Raise EncodingError for a
        message that can't be stored. Raise OSError or NotPermittedError if the disk fails.
        """
        trailer, is_dead = bytes((state,)), state == DEAD
        records, size, room = list[bytes](), 0, 0
        for entry in entries:
            try:
                record = frame(encode_entry(entry), seed=self._seed, trailer=trailer)
            except (ValueError, TypeError, OverflowError) as error:
                if records:
                    break
                raise EncodingError(f"a message can't be stored: {error}") from error
            if not records:
                room = self._limit - self._find_writable(len(record), is_dead=is_dead).file.size
            elif size + len(record) > room:
                break
            records.append(record)
            size += len(record)
        self._make_room(size)
        segment = self._find_writable(size, is_dead=is_dead)
        try:
            segment.append(records, entries[: len(records)], is_synced=self._is_synced)
        except OSError:
            self._seal(segment)
            raise
        return len(records)

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limits."""
        self._drop_expired()
        return all(excess <= 0 for _, excess in self._excesses(size))

    def read(
        self, count: int, size: int, choice: MessageChoice, *, in_memory: bool = False
    ) -> list[QueuedMessage]:
        """Return the oldest messages: at most `count` of about `size` bytes, but at least one.

        No file follows one that another process has locked, because its messages are older.
        in_memory: leave out all files.
        """
        found: list[QueuedMessage] = []
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
                    found.append(QueuedMessage(segment.number << _OFFSET_BITS | position, entry))
        return found

    def mark(self, numbers: Collection[int], state: int = DONE) -> bool:
        """Change the state of messages. Return whether a finished segment was deleted."""
        before = len(self._segments)
        for number in numbers:
            segment = self._segments.get(number >> _OFFSET_BITS)
            if segment is None:
                continue
            self._ensure_open(segment)
            segment.mark(number & _POSITION, state)
            if segment.is_finished and segment.file.is_open:
                has_room = segment.file.size < self._limit // 4
                if not (has_room and self._is_written(segment)):
                    self._delete(segment)
        return len(self._segments) < before

    def reject(self, number: int, reason: str, rejected: float) -> None:
        """Turn a message into a dead letter, without its reason if there is no room for it."""
        segment, position = self._segments.get(number >> _OFFSET_BITS), number & _POSITION
        if segment is None or not self._ensure_open(segment) or position not in segment.index:
            return
        entry = self._read_message(segment, position)
        if entry is None:
            return
        state = DEAD
        try:
            if not (segment.path and self.failure):  # a file outlives a dead letter in memory
                letter = QueueEntry(entry.stored, self.now().clock, entry.message, reason, rejected)
                self.append([letter], DEAD)
                state = DONE
        finally:
            self.mark([number], state)

    def is_blocked(self) -> bool:
        """Return whether another process sends older messages, or those of this queue."""
        return any(segment.is_elsewhere for segment in self._in_order())

    def has_messages(self) -> bool:
        """Return whether a message is waiting that no other process sends."""
        for each in self._segments.values():  # a loop, because each put asks
            if each.count and not each.is_dead and not each.is_elsewhere:
                return True
        return False

    def count(self, *, in_memory: bool = False) -> int:
        """Return the number of waiting messages, also of those that another process sends.

        in_memory: leave out all files.
        """
        return sum(each.count for each in self._in_order() if not (in_memory and each.path))

    def size(self) -> int:
        """Return the bytes of the waiting messages."""
        return sum(segment.bytes for segment in self._in_order())

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
            self.mark([segment.number << _OFFSET_BITS | position])
        return entry

    def _excesses(self, size: int) -> Iterator[tuple[list[QueueSegment], int]]:
        """Yield the segments under each limit, and by how many bytes `size` more exceed it."""
        segments = [*self._segments.values()]
        yield segments, sum(each.file.size for each in segments) + size - self._settings.max_bytes
        if not self.path or self.failure:
            segments = [each for each in self._segments.values() if not each.path]
            yield segments, sum(each.file.size for each in segments) + size - _MEMORY_BYTES

    def _make_room(self, size: int) -> None:
        """Delete expired messages, and the oldest segments until `size` more bytes fit."""
        before = self.dropped
        self._drop_expired()
        for segments, excess in self._excesses(size):
            freed = 0
            letters_first = sorted(segments, key=lambda each: not each.is_dead)
            for segment in letters_first if excess > 0 else ():
                if freed < excess and not segment.is_elsewhere:
                    freed += segment.file.size
                    self._drop(segment)
        if self.dropped > before:
            logger.error(
                "sink %s: the queue is full or too old: the %d oldest messages are dropped; "
                "see outbox.max-bytes and outbox.max-age",
                self.owner.sink,
                self.dropped - before,
            )

    def _drop(self, segment: QueueSegment) -> None:
        """Delete a segment with its messages, and count them."""
        count = segment.count + segment.dead
        if segment.is_dead or self._ensure_open(segment):
            self._delete(segment)
            if segment.number not in self._segments:  # its file could be deleted
                self._count_dropped(count)

    def _count_dropped(self, count: int) -> None:
        """Count dropped messages, also in the file that is written."""
        self.dropped += count
        written = self._written.get(False)
        if count and written is not None and written.header is not None:
            written.update_header(written.header._replace(dropped=self.dropped))

    def _drop_expired(self) -> None:
        """Delete expired messages and dead letters, and count them."""
        now = self.now().clock
        if now < self._expiry:
            return
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
