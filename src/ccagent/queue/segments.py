"""The messages of one queue on disk: order, states, limits, dead letters."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError, UnparsableError
from ccagent.log import logger
from ccagent.queue.entry import QueuedMessage, QueueEntry, encode_entry
from ccagent.queue.record_log import frame
from ccagent.queue.segment import DEAD, DONE, WAITING, QueueSegment
from ccagent.queue.segment_directory import FILE_ERRORS, SegmentDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ccagent.queue.failures import MessageChoice
    from ccagent.records.message import Message

_OFFSET_BITS = 40
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""


class QueueSegments(SegmentDirectory):
    """The messages of one queue on disk, oldest first, and its dead letters.

    max_bytes, max_age (seconds): above these limits the oldest dead letters, then the oldest
    messages are deleted and counted, in whole segments where possible. durability: with `process` a
    stored message survives the end of the process. With `power` it also survives a power failure,
    but each message waits for the disk. Methods raise OSError and NotPermittedError.
    """

    def append(self, entries: Sequence[QueueEntry], state: int = WAITING) -> int:
        """Store the first of some entries, as many as fit into one segment. Return their number.

        Older messages are deleted to make room, and counted in `dropped`. Raise EncodingError for a
        message that can't be stored.
        """
        trailer, seed, is_dead = bytes((state,)), self.owner.seed, state == DEAD
        records, size, room = list[bytes](), 0, 0
        for entry in entries:
            try:
                record = frame(encode_entry(entry), seed=seed, trailer=trailer)
            except (ValueError, TypeError, OverflowError) as error:
                if records:
                    break
                raise EncodingError(f"a message can't be stored: {error}") from error
            if not records:
                room = self._limit - self._find_writable(len(record), is_dead=is_dead).size
            elif size + len(record) > room:
                break
            records.append(record)
            size += len(record)
        self.make_room(size)
        segment = self._find_writable(size, is_dead=is_dead)
        begin = segment.size
        try:
            segment.append(records, entries[: len(records)])
            if self._is_synced:
                segment.file.sync()
        except OSError:
            for offset in [each for each in segment.index if each >= begin]:
                segment.mark(offset, DONE)  # the caller keeps them
            if segment.is_finished:
                self._delete(segment)  # its space may suffice for the next attempt
            raise
        return len(records)

    def make_room(self, size: int) -> None:
        """Delete expired messages, and the oldest segments until `size` more bytes fit."""
        dropped = self._drop_expired()
        total = self.total_bytes() + size
        if total > self._max_bytes:
            for segment in sorted(self._segments.values(), key=lambda each: not each.is_dead):
                if total <= self._max_bytes:
                    break
                if not segment.is_elsewhere:
                    total -= segment.size
                    dropped += self._drop(segment)
        self._count_dropped(dropped)

    def total_bytes(self) -> int:
        """Return the used bytes of all segments."""
        return sum(segment.size for segment in self._segments.values())

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        self._count_dropped(self._drop_expired())
        return self.total_bytes() + size <= self._max_bytes

    def read(self, count: int, size: int, choice: MessageChoice) -> list[QueuedMessage]:
        """Return the oldest messages: at most `count` of about `size` bytes, but at least one.

        Segments that another process has locked end the list, because their messages are older.
        """
        found: list[QueuedMessage] = []
        for segment in self._in_order():
            if segment.is_elsewhere:
                break
            before = len(found)
            while len(found) == before and (
                selected := self._select(segment, choice, count - before)
            ):
                for offset, record in selected:
                    size -= record
                    if found and size < 0:
                        return found
                    entry = self._read_message(segment, offset, record)
                    if entry is not None:
                        number = segment.number << _OFFSET_BITS | offset
                        found.append(QueuedMessage(number, entry))
            if len(found) >= count:
                break
        return found

    def is_blocked(self) -> bool:
        """Return whether another process sends older messages, or those of this queue."""
        return any(segment.is_elsewhere for segment in self._in_order())

    def mark(self, numbers: Collection[int], state: int = DONE) -> bool:
        """Change the state of waiting messages. Return whether a finished segment was deleted."""
        touched: dict[int, QueueSegment] = {}
        for number in numbers:
            segment = self._segments.get(number >> _OFFSET_BITS)
            if segment is not None:
                self._ensure_open(segment)
                segment.mark(number & (1 << _OFFSET_BITS) - 1, state)
                touched[segment.number] = segment
        before = len(self._segments)
        for segment in touched.values():
            is_written = segment is self._written.get(False) and segment.size < self._limit // 4
            if segment.is_finished and segment.file.is_open and not is_written:
                self._delete(segment)
        return len(self._segments) < before

    def reject(self, number: int, reason: str, rejected: float) -> None:
        """Turn a message into a dead letter, without its reason if there is no room for it."""
        segment = self._segments.get(number >> _OFFSET_BITS)
        if segment is None or not self._ensure_open(segment):
            return
        offset = number & (1 << _OFFSET_BITS) - 1
        try:
            found = segment.index[offset]
            entry = segment.read(offset, found.size, self.owner.seed)
            if entry is not None:
                self.add_dead_letter(entry.message, reason, rejected, entry.stored)
        except KeyError:
            return
        except UnparsableError:
            self.mark([number], DEAD)
        except FILE_ERRORS:
            self.mark([number], DEAD)
            raise
        self.mark([number])

    def add_dead_letter(
        self, message: Message, reason: str, rejected: float, stored: float
    ) -> None:
        """Store a dead letter."""
        letter = QueueEntry(stored, self.now().clock, message, reason, rejected)
        self.append([letter], DEAD)

    def has_messages(self) -> bool:
        """Return whether a message is waiting that no other process sends."""
        return any(segment.count and not segment.is_elsewhere for segment in self._in_order())

    def count(self) -> int:
        """Return the number of waiting messages, also of those that another process sends."""
        return sum(segment.count for segment in self._segments.values())

    def size(self) -> int:
        """Return the bytes of the waiting messages."""
        return sum(segment.bytes for segment in self._segments.values())

    def _select(
        self, segment: QueueSegment, choice: MessageChoice, count: int
    ) -> list[tuple[int, int]]:
        """Return offset and size of the first chosen messages of a segment, at most `count`."""
        number, kinds, numbers = choice
        if number is not None and number >> _OFFSET_BITS != segment.number:
            return []
        if number is None and not any(
            count and topic not in kinds for topic, count in segment.topics.items()
        ):
            return []
        if segment.problem or not self._ensure_open(segment):
            return []
        if number is not None:
            offset = number & (1 << _OFFSET_BITS) - 1
            message = segment.index.get(offset)
            return [] if message is None else [(offset, message.size)]
        base = segment.number << _OFFSET_BITS
        chosen = (
            (offset, message.size)
            for offset, message in segment.index.items()
            if message.topic not in kinds and base | offset not in numbers
        )
        return [*islice(chosen, count)]

    def _read_message(self, segment: QueueSegment, offset: int, size: int) -> QueueEntry | None:
        """Return a waiting message; None if it is damaged, or deleted by a command."""
        try:
            entry = segment.read(offset, size, self.owner.seed)
        except UnparsableError as error:
            self.damaged += 1
            logger.error("outbox %s: a message at %d is %s", segment.path, offset, error)
            entry = None
        except OSError as error:
            self._note_problem(segment, error)
            return None
        if entry is None:
            self.mark([segment.number << _OFFSET_BITS | offset])
        return entry

    def _drop(self, segment: QueueSegment) -> int:
        """Delete a segment with its messages. Return their number."""
        count = segment.count + segment.dead
        if not segment.is_dead and not self._ensure_open(segment):
            return 0
        self._delete(segment)
        return count

    def _drop_expired(self) -> int:
        """Delete expired messages and dead letters. Return their number."""
        now = self.now().clock
        if now < self._expiry:
            return 0
        self._expiry = now + self._max_age / _EXPIRY_STEPS
        oldest = now - self._max_age
        dropped = 0
        for segment in [*self._segments.values()]:
            if segment.is_elsewhere:
                continue
            if segment.newest < oldest and not segment.is_finished:
                dropped += self._drop(segment)
            elif segment.oldest < oldest and segment.count and self._ensure_open(segment):
                expired = [
                    offset for offset, message in segment.index.items() if message.clock < oldest
                ]
                for offset in expired:
                    segment.mark(offset, DONE)
                segment.oldest = oldest
                dropped += len(expired)
        return dropped

    def _count_dropped(self, dropped: int) -> None:
        self.dropped += dropped
        written = self._written.get(False)
        if dropped and written is not None and written.header is not None:
            written.update_header(written.header._replace(dropped=self.dropped))
