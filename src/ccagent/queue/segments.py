"""The messages of one queue in segments: order, states, limits, dead letters."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError, UnparsableError
from ccagent.log import logger
from ccagent.queue.entry import (
    Moment,
    QueuedMessage,
    QueueEntry,
    advance,
    encode_entry,
    read_boot_id,
    read_uptime,
)
from ccagent.queue.record_log import frame
from ccagent.queue.segment import DEAD, DONE, WAITING, QueueSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.failures import MessageChoice
    from ccagent.queue.segment import QueueOwner

_OFFSET_BITS = 40
_POSITION = (1 << _OFFSET_BITS) - 1
_FIRST_IN_MEMORY = 1 << 40
"""Numbers of segments on disk and in memory must differ."""
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""
_LARGEST = 1 << 20
_LEAST = 4096
_SEGMENTS = 8
"""Minimum number of segments of a full queue: the oldest is deleted as a whole."""


class QueueSegments:
    """The messages of one queue in memory, oldest first, and its dead letters.

    Above `max_bytes` and `max_age` the oldest dead letters, then the oldest messages are deleted
    and counted, in whole segments where possible. uptime, boot_id: see `entry`.
    """

    def __init__(
        self,
        owner: QueueOwner,
        settings: OutboxSettings,
        *,
        uptime: Callable[[], float] = read_uptime,
        boot_id: Callable[[], bytes] = read_boot_id,
    ) -> None:
        self.owner = owner
        self._seed = owner.seed
        self.dropped: int = 0
        """Messages and dead letters deleted because of the limits."""
        self.damaged: int = 0
        """Damaged parts of files, and undecodable messages."""
        self._max_bytes = settings.max_bytes
        self._limit = max(_LEAST, min(_LARGEST, settings.max_bytes // _SEGMENTS))
        self._max_age = settings.max_age.seconds
        self._is_synced = settings.durability == "power"
        self._expiry = 0.0
        """When the ages are checked next, by the queue's clock."""
        self._uptime = uptime
        self._boot = boot_id()
        self._moment: Moment | None = None
        self._segments: dict[int, QueueSegment] = {}
        self._written: dict[bool, QueueSegment] = {}
        """The segments that are written: dead letters (True), messages (False)."""
        self._last = _FIRST_IN_MEMORY

    def now(self) -> Moment:
        """Return the reading of the queue's clock."""
        moment = self._moment or self._find_moment()
        self._moment = advance(moment, self._boot, self._uptime())
        return self._moment

    def append(self, entries: Sequence[QueueEntry], state: int = WAITING) -> int:
        """Store the first of some entries, as many as fit into one segment. Return their number.

        Older messages are deleted to make room, and counted in `dropped`. Raise EncodingError for a
        message that can't be stored.
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
            if segment.is_finished:
                self._delete(segment)  # its space may suffice for the next attempt
            raise
        return len(records)

    def total_bytes(self) -> int:
        """Return the used bytes of all segments."""
        return sum(segment.file.size for segment in self._segments.values())

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        self._drop_expired()
        return self.total_bytes() + size <= self._max_bytes

    def read(
        self, count: int, size: int, choice: MessageChoice, *, is_dead: bool = False
    ) -> list[QueuedMessage]:
        """Return the oldest messages: at most `count` of about `size` bytes, but at least one.

        Segments that another process has locked end the list, because their messages are older.
        is_dead: return dead letters of open files.
        """
        found: list[QueuedMessage] = []
        for segment in self._in_order(is_dead=is_dead):
            if segment.is_elsewhere:
                break
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
        touched: dict[int, QueueSegment] = {}
        for number in numbers:
            segment = self._segments.get(number >> _OFFSET_BITS)
            if segment is not None:
                self._ensure_open(segment)
                segment.mark(number & _POSITION, state)
                touched[segment.number] = segment
        before = len(self._segments)
        for segment in touched.values():
            is_written = (
                segment is self._written.get(False) and segment.file.size < self._limit // 4
            )
            if segment.is_finished and segment.file.is_open and not is_written:
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

    def count(self) -> int:
        """Return the number of waiting messages, also of those that another process sends."""
        return sum(segment.count for segment in self._in_order())

    def size(self) -> int:
        """Return the bytes of the waiting messages."""
        return sum(segment.bytes for segment in self._in_order())

    def close(self) -> None:
        """Delete all segments."""
        self._segments.clear()
        self._written.clear()

    def _in_order(self, *, is_dead: bool = False) -> Iterator[QueueSegment]:
        """Return the segments of messages or of dead letters, oldest first."""
        return (each for each in [*self._segments.values()] if each.is_dead is is_dead)

    def _find_moment(self) -> Moment:
        """Return the first reading of the clock."""
        return Moment(0.0, self._boot, self._uptime())

    def _find_writable(self, size: int, *, is_dead: bool) -> QueueSegment:
        """Return a segment in which a record of this size fits."""
        segment = self._written.get(is_dead)
        if segment is not None:
            if segment.file.size + size <= self._limit:
                return segment
            self._seal(segment)
        segment = self._create(size, is_dead=is_dead)
        self._segments[segment.number] = self._written[is_dead] = segment
        return segment

    def _create(self, size: int, *, is_dead: bool) -> QueueSegment:
        """Return a new segment with room for `size` bytes of messages."""
        del size
        self._last += 1
        return QueueSegment("", self._last, is_dead=is_dead)

    def _seal(self, segment: QueueSegment) -> None:
        """Stop writing a segment."""
        del self._written[segment.is_dead]
        if segment.is_finished:
            self._delete(segment)

    def _delete(self, segment: QueueSegment) -> None:
        """Delete a segment."""
        self._segments.pop(segment.number, None)
        if self._written.get(segment.is_dead) is segment:
            del self._written[segment.is_dead]

    def _ensure_open(self, segment: QueueSegment) -> bool:
        """Open a segment if needed. Return whether it is open."""
        return segment.file.is_open

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
        """Return a message; None if it is damaged, or deleted by a command."""
        entry = None
        try:
            entry = segment.read(position, self._seed)
        except UnparsableError as error:
            self.damaged += 1
            logger.error("outbox %s: a message at %d is %s", segment.path, position, error)
        if entry is None:
            self.mark([segment.number << _OFFSET_BITS | position])
        return entry

    def _make_room(self, size: int) -> None:
        """Delete expired messages, and the oldest segments until `size` more bytes fit."""
        self._drop_expired()
        total = self.total_bytes() + size
        if total > self._max_bytes:
            for segment in sorted(self._segments.values(), key=lambda each: not each.is_dead):
                if total <= self._max_bytes:
                    break
                if not segment.is_elsewhere:
                    total -= segment.file.size
                    self._drop(segment)

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
        self._expiry = now + self._max_age / _EXPIRY_STEPS
        oldest = now - self._max_age
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
