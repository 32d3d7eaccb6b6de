"""The segments of one queue in a directory: takeover, order, limits, dead letters.

Each open segment is locked by its process. A process sends a segment only if it can lock it and
all older ones, so messages leave in order, and what a killed or finished process has left is taken
over by the next look at the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import EncodingError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.machine.private_directories import check_directory, make_directory
from ccagent.queue.entry import QueuedMessage, QueueEntry, encode_entry
from ccagent.queue.queue_clock import Moment, advance, read_boot_id, read_uptime, resume
from ccagent.queue.record_log import frame
from ccagent.queue.segment import (
    DEAD,
    DONE,
    WAITING,
    QueueSegment,
    SegmentHeader,
    allocate,
    encode_header,
    read_segment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ccagent.queue.failures import MessageChoice
    from ccagent.queue.segment import QueueOwner, SegmentContent
    from ccagent.records.message import Message

SEGMENT = ".log"
LETTERS = ".dead"
FOREIGN = ".foreign"
DAMAGED = ".damaged"
"""Suffixes of files: messages, dead letters, of another sink or machine, without any message."""

_NAME = re.compile(r"([0-9]{12})(\.log|\.dead)")
_LARGEST = 1 << 20
_LEAST = 4096
_SEGMENTS = 8
"""Minimum number of segments of a full queue: the oldest is deleted as a whole."""
_OPEN = 4
"""Maximum number of open segments, except for those that are written."""
_OFFSET_BITS = 40
_NO_REASON = "the reason could not be stored"
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""

FILE_ERRORS = (OSError, NotPermittedError)


def is_segment(path: str) -> bool:
    """Return whether a file is a segment by its name."""
    return _NAME.fullmatch(os.path.basename(path)) is not None


class QueueSegments:
    """The messages of one queue on disk, oldest first, and its dead letters.

    max_bytes, max_age (seconds): above these limits the oldest dead letters, then the oldest
    messages are deleted and counted, in whole segments where possible. durability: with `process` a
    stored message survives the end of the process. With `power` it also survives a power failure,
    but each message waits for the disk. Methods raise OSError and NotPermittedError.
    """

    def __init__(
        self,
        path: str,
        owner: QueueOwner,
        *,
        max_bytes: int,
        max_age: float,
        durability: str = "process",
        uptime: Callable[[], float] = read_uptime,
        boot_id: Callable[[], bytes] = read_boot_id,
    ) -> None:
        self.path = path
        self.dropped = 0
        """Messages and dead letters deleted because of the limits, also by earlier processes."""
        self.damaged = 0
        """Damaged parts of files, and undecodable messages."""
        self.set_aside: list[str] = []
        """Names of files of other sinks or machines."""
        self.owner = owner
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._limit = max(_LEAST, min(_LARGEST, max_bytes // _SEGMENTS))
        self._is_synced = durability == "power"
        self._uptime = uptime
        self._boot = boot_id()
        self._moment: Moment | None = None
        self._expiry = 0.0
        self._segments: dict[int, QueueSegment] = {}
        self._written: dict[bool, QueueSegment] = {}
        """The segments that are written: dead letters (True), messages (False)."""
        self._last = 0

    def open(self) -> None:
        """Create the directory if needed, and look at all its files, also those with problems."""
        for path in (os.path.dirname(self.path), self.path):
            make_directory(path)
            if reason := check_directory(path):
                raise NotPermittedError(reason)
        for segment in self._segments.values():
            segment.problem = ""
        self.look()

    def look(self) -> list[QueueEntry]:
        """Take over new segments of the directory that no other process has locked.

        Return the messages and dead letters of open files that somebody has removed.
        """
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            for path in (os.path.dirname(self.path), self.path):
                make_directory(path)
            names = []
        self.set_aside = sorted(name for name in names if name.endswith(FOREIGN))
        there = {int(match[1]): match for name in names if (match := _NAME.fullmatch(name))}
        rescued: list[QueueEntry] = []
        for number, segment in [*self._segments.items()]:
            if number not in there or (segment.file.is_open and not segment.file.is_current()):
                rescued += self._give_up(segment)
            elif (
                segment.is_finished
                and segment.file.is_open
                and segment not in self._written.values()
            ):
                self._delete(segment)
        for number in sorted(there):
            if number not in self._segments:
                path = os.path.join(self.path, there[number][0])
                is_dead = there[number][2] == LETTERS
                self._segments[number] = QueueSegment(path, number, is_dead=is_dead)
                self._last = max(self._last, number)
                self._examine(self._segments[number])
            elif self._segments[number].is_elsewhere:
                self._examine(self._segments[number])
        self._segments = dict(sorted(self._segments.items()))
        return rescued

    @property
    def problem(self) -> str:
        """The first file that can't be read now, and the reason; empty without one."""
        for segment in self._segments.values():
            if segment.problem:
                return f"{segment.path}: {segment.problem}"
        return ""

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self._segments)

    def read_files(self) -> dict[str, SegmentContent]:
        """Read all files without locks: content by name, oldest first."""
        contents: dict[str, SegmentContent] = {}
        for name in sorted(os.listdir(self.path)):
            if _NAME.fullmatch(name) or name.endswith(FOREIGN):
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(self.path, name)
                    contents[name] = read_segment(path, self.owner)
        return contents

    def now(self) -> Moment:
        """Return the reading of the queue's clock."""
        if self._moment is None:
            self._moment = self._find_moment()
        self._moment = advance(self._moment, self._boot, self._uptime())
        return self._moment

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
        try:
            segment.append(records, entries[: len(records)])
        except OSError:
            if segment.is_finished:
                self._delete(segment)  # its space may suffice for the next attempt
            raise
        if self._is_synced:
            segment.file.sync()
        return len(records)

    def is_removed(self) -> bool:
        """Return whether somebody has deleted the segment that is written."""
        written = self._written.get(False)
        return written is not None and not os.fstat(written.file.descriptor).st_nlink

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

    def mark(self, numbers: Collection[int], state: int = DONE) -> None:
        """Change the state of waiting messages. Finished segments are deleted."""
        touched: dict[int, QueueSegment] = {}
        for number in numbers:
            segment = self._segments.get(number >> _OFFSET_BITS)
            if segment is not None:
                self._ensure_open(segment)
                segment.mark(number & (1 << _OFFSET_BITS) - 1, state)
                touched[segment.number] = segment
        for segment in touched.values():
            is_written = segment is self._written.get(False) and segment.size < self._limit // 4
            if segment.is_finished and segment.file.is_open and not is_written:
                self._delete(segment)

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
        except (*FILE_ERRORS, UnparsableError):
            self.mark([number], DEAD)
            raise
        except KeyError:
            return
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

    def ids(self) -> set[str]:
        """Return the ids of all waiting messages. Slow: it reads all segments."""
        found: set[str] = set()
        for segment in [*self._in_order()]:
            if segment.count and self._ensure_open(segment):
                found.update(
                    each.entry.message.id for each in segment.read_all(self.owner) if each.entry
                )
        return found

    def close(self) -> None:
        """Free unused space, and unlock all segments."""
        for segment in [*self._segments.values()]:
            if not segment.file.is_open:
                continue
            if segment.is_finished and not self.dropped:
                self._delete(segment)
                continue
            with contextlib.suppress(OSError):
                os.ftruncate(segment.file.descriptor, segment.size)
            segment.close()
        self._segments.clear()
        self._written.clear()

    def _in_order(self) -> Iterator[QueueSegment]:
        """Return the segments of messages, oldest first."""
        return (segment for segment in [*self._segments.values()] if not segment.is_dead)

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

    def _ensure_open(self, segment: QueueSegment) -> bool:
        """Open a segment if needed. Return whether it is open."""
        if not segment.file.is_open:
            self._examine(segment)
        return segment.file.is_open

    def _close_others(self, segment: QueueSegment) -> None:
        """Close some segments that were opened before another one."""
        opened = [
            each
            for each in self._segments.values()
            if each.file.is_open and each not in self._written.values()
        ]
        for other in opened[1 : len(opened) - _OPEN + 1]:  # the oldest stays: it is sent
            if other is not segment:
                other.close()

    def _examine(self, segment: QueueSegment) -> None:
        """Lock and read a segment, and delete it or set it aside if nothing in it can be sent."""
        try:
            is_ours = segment.open(self.owner)
        except FileNotFoundError:
            self._segments.pop(segment.number, None)
            return
        except FILE_ERRORS as error:
            self._note_problem(segment, error)
            return
        if not is_ours:
            return
        header = segment.header
        if header is not None and not header.owner.is_same(self.owner):
            logger.error(
                "outbox %s: queued by host %s for sink %s, so it is set aside; "
                "`ccagent outbox` shows its messages",
                segment.path,
                header.owner.host,
                header.owner.sink,
            )
            self._set_aside(segment, FOREIGN)
            return
        if header is not None:
            self.dropped = max(self.dropped, header.dropped)
        if segment.damaged and not segment.is_examined:
            self.damaged += len(segment.damaged)
            logger.error(
                "outbox %s: %d bytes are damaged; %d undamaged messages are sent",
                segment.path,
                sum(part.size for part in segment.damaged),
                segment.count,
            )
        segment.is_examined = True
        if segment.is_unreadable:
            self._set_aside(segment, DAMAGED)
        elif segment.is_finished:
            if self._moment is None:
                self._moment = self._find_moment()
            self._delete(segment)
        elif segment.is_dead:
            segment.close()
        else:
            self._close_others(segment)

    def _set_aside(self, segment: QueueSegment, suffix: str) -> None:
        """Rename a file that can't be sent, so that it is not looked at again."""
        aside = f"{segment.path}.{time.time_ns()}{suffix}"
        try:
            os.rename(segment.path, aside)
        except OSError as error:
            self._note_problem(segment, error)
            return
        self.set_aside.append(os.path.basename(aside))
        self._forget(segment)

    def _note_problem(self, segment: QueueSegment, error: Exception) -> None:
        """Leave out a segment until the next `open`."""
        segment.problem = getattr(error, "strerror", None) or str(error)
        logger.error("outbox %s: %s", segment.path, segment.problem)

    def _give_up(self, segment: QueueSegment) -> list[QueueEntry]:
        """Forget a segment that is not in the directory any more. Return what can be read of it."""
        entries: list[QueueEntry] = []
        if segment.file.is_open and not os.fstat(segment.file.descriptor).st_nlink:
            with contextlib.suppress(OSError):
                for message in segment.read_all(self.owner):
                    if message.entry is not None and message.is_dead:
                        reason = message.entry.reason or _NO_REASON
                        entries.append(msgspec.structs.replace(message.entry, reason=reason))
                    elif message.entry is not None:
                        entries.append(message.entry)
        lost = segment.count + segment.dead - len(entries)
        if lost > 0 and not segment.is_elsewhere:
            logger.error("outbox %s: removed or replaced with %d messages", segment.path, lost)
        self._forget(segment)
        return entries

    def _forget(self, segment: QueueSegment) -> None:
        segment.close()
        self._segments.pop(segment.number, None)
        if self._written.get(segment.is_dead) is segment:
            del self._written[segment.is_dead]

    def _delete(self, segment: QueueSegment) -> None:
        """Delete the file of a segment. If that fails, the next look tries it again."""
        try:
            os.unlink(segment.path)
        except FileNotFoundError:
            pass
        except OSError:
            return
        self._forget(segment)

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

    def _find_moment(self) -> Moment:
        """Return the last reading of the clock in the newest segment, or zero."""
        newest = max(self._segments.values(), key=lambda each: each.number, default=None)
        if newest is None:
            return Moment(0.0, self._boot, self._uptime())
        last = newest.header.moment if newest.header is not None else None
        return resume(last, newest.newest, self._boot, self._uptime())

    def _find_writable(self, size: int, *, is_dead: bool) -> QueueSegment:
        """Return a segment in which a record of this size fits."""
        segment = self._written.get(is_dead)
        if segment is None and not is_dead:
            segment = self._reopen_newest(size)
        if segment is not None:
            if segment.size + size <= self._limit:
                return segment
            self._seal(segment)
        return self._create(size, is_dead=is_dead)

    def _reopen_newest(self, size: int) -> QueueSegment | None:
        """Return the newest segment if this process may continue it."""
        segment = max(self._in_order(), key=lambda each: each.number, default=None)
        if segment is None or segment.size + size > self._limit or segment.is_elsewhere:
            return None
        # The clock of a segment is that of one boot.
        if segment.header is None or segment.header.moment.boot != self._boot:
            return None
        if not self._ensure_open(segment):
            return None
        try:
            os.ftruncate(segment.file.descriptor, segment.size)  # behind it may be damaged bytes
            allocate(segment.file.descriptor, self._limit, segment.size + size)
        except OSError:
            return None
        self._written[False] = segment
        return segment

    def _seal(self, segment: QueueSegment) -> None:
        """Stop writing a segment."""
        del self._written[segment.is_dead]
        if segment.is_finished:
            self._delete(segment)
        elif segment.is_dead:
            segment.close()
        else:
            self._close_others(segment)

    def _create(self, size: int, *, is_dead: bool) -> QueueSegment:
        """Create the next segment."""
        moment = self.now()
        header = SegmentHeader(moment, self.dropped, self.owner)
        room = max(self._limit, size + len(encode_header(header)))
        while True:
            self._last += 1
            name = f"{self._last:012}{LETTERS if is_dead else SEGMENT}"
            segment = QueueSegment(os.path.join(self.path, name), self._last, is_dead=is_dead)
            try:
                is_ours = segment.create(header, size, room)
            except FileExistsError:
                continue
            if is_ours:
                break
        self._segments[segment.number] = segment
        self._written[is_dead] = segment
        if self._is_synced:
            self._sync_directory()
        return segment

    def _sync_directory(self) -> None:
        """Wait until the name of a new file is on the disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
