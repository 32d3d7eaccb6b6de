"""A segment of a queue: a file of messages whose states are overwritten in place.

The first record is the header: the sink and the machine that wrote the file, the queue's clock, and
the number of dropped messages. Each other record is one message; its trailer is a byte, its state.
Nothing that reduces the backlog needs space: states are overwritten, finished files are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import struct
import sys
import zlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import UnparsableError
from ccagent.queue.entry import QueueEntry, decode_entry
from ccagent.queue.queue_clock import Moment
from ccagent.queue.record_log import DamagedPart, LogFile, frame, read_record, read_records
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WAITING, DONE, DEAD = 0x55, 0xAA, 0x33
"""States of a message. Any two differ in at least four bits, so a flipped bit does no harm."""

_NEAREST = [
    min((WAITING, DONE, DEAD), key=lambda state: (state ^ byte).bit_count()) for byte in range(256)
]
"""The state that a byte stands for; WAITING in doubt."""

_MAGIC = b"CCQ\x01"
_HEADER = struct.Struct("<4sdd36sQ")
_MACHINE_ID = "/etc/machine-id"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LARGEST_FILE = 128 << 20


class QueueOwner(msgspec.Struct, frozen=True):
    """The sink and the machine whose messages a file contains.

    machine: checksum of the machine id. A machine that was renamed keeps it, and a machine without
    a disk keeps its name.
    """

    sink: str
    host: str
    machine: int

    @property
    def seed(self) -> int:
        """Return the initial checksum of the records, so that no other sink can read them."""
        return zlib.crc32(self.sink.encode("utf-8", "surrogateescape"))

    def is_same(self, other: QueueOwner) -> bool:
        """Return whether a file of this owner may be sent for another."""
        is_same_machine = self.host == other.host or self.machine == other.machine != 0
        return self.sink == other.sink and is_same_machine


def find_owner(sink: str) -> QueueOwner:
    """Return the owner of files that this machine writes for a sink."""
    identity = b""
    with contextlib.suppress(OSError), open(_MACHINE_ID, "rb") as file:
        identity = file.read(64).strip()
    return QueueOwner(sink, os.uname().nodename, zlib.crc32(identity) if identity else 0)


class SegmentHeader(NamedTuple):
    """The first record of a segment. dropped: messages of this queue that were dropped so far."""

    moment: Moment
    dropped: int
    owner: QueueOwner


class StoredMessage(NamedTuple):
    """One message of a segment. size: of its record in bytes; entry: None if undecodable."""

    offset: int
    size: int
    state: int
    entry: QueueEntry | None

    @property
    def state_offset(self) -> int:
        """Return the offset of the state in the file."""
        return self.offset + self.size - 1

    @property
    def is_done(self) -> bool:
        """True for an acknowledged message, and a deleted dead letter."""
        return self.state == DONE

    @property
    def is_waiting(self) -> bool:
        """True for a message to send."""
        return self.state == WAITING and self.entry is not None

    @property
    def is_dead(self) -> bool:
        """True for a dead letter, and for a waiting message that can't be decoded."""
        return self.state == DEAD or (self.state == WAITING and self.entry is None)

    @property
    def reason(self) -> str:
        """The reason of a dead letter."""
        if self.entry is None:
            return "stored by another version"
        return self.entry.reason or "the reason could not be stored"


class SegmentContent(NamedTuple):
    """The content of a segment.

    header: None if damaged. size: bytes up to the last record. is_foreign: written for another sink
    or by another machine.
    """

    header: SegmentHeader | None
    messages: list[StoredMessage]
    damaged: list[DamagedPart]
    size: int
    is_foreign: bool

    @property
    def newest(self) -> float:
        """The last reading of the queue's clock."""
        clock = self.header.moment.clock if self.header is not None else 0.0
        return max((each.entry.clock for each in self.messages if each.entry), default=clock)

    @property
    def waiting(self) -> list[StoredMessage]:
        """The messages to send; none of a file of another sink or machine."""
        return [each for each in self.messages if each.is_waiting and not self.is_foreign]


def encode_header(header: SegmentHeader) -> bytes:
    """Return the record of a header. Its length depends on the owner only."""
    moment = header.moment
    fixed = _HEADER.pack(_MAGIC, moment.clock, moment.uptime, moment.boot, header.dropped)
    return frame(fixed + msgspec.json.encode(header.owner), trailer=bytes([DONE]))


def parse_segment(content: bytes, owner: QueueOwner) -> SegmentContent:
    """Parse a segment. owner: whose messages they are if the header is damaged."""
    data = memoryview(content)
    used = len(content.rstrip(b"\0"))  # the rest was allocated; a message may end with zeros too
    offset, header = 0, None
    first = read_record(data, 0)
    if first is not None:
        with contextlib.suppress(struct.error, msgspec.MsgspecError):
            magic, clock, uptime, boot, dropped = _HEADER.unpack_from(first.payload)
            found = msgspec.json.decode(first.payload[_HEADER.size :], type=QueueOwner)
            if magic == _MAGIC:
                header = SegmentHeader(Moment(clock, boot.rstrip(b"\0"), uptime), dropped, found)
        offset = first.trailer + 1
    messages: list[StoredMessage] = []
    damaged: list[DamagedPart] = []
    size = offset
    seed = (header.owner if header is not None else owner).seed
    for record in read_records(data, offset, seed=seed, trailer=1):
        if isinstance(record, DamagedPart):
            if record.offset < used:
                damaged.append(record._replace(size=min(record.size, used - record.offset)))
            continue
        size = record.trailer + 1
        byte = data[record.trailer] if record.trailer < len(data) else 0
        entry = None
        with contextlib.suppress(UnparsableError):
            entry = decode_entry(record.payload)
        messages.append(StoredMessage(record.offset, size - record.offset, _NEAREST[byte], entry))
    is_foreign = header is not None and not header.owner.is_same(owner)
    return SegmentContent(header, messages, damaged, size, is_foreign)


def read_segment(path: str, owner: QueueOwner) -> SegmentContent:
    """Read a segment without its lock. Raise OSError or NotPermittedError."""
    descriptor = open_private(path, os.O_RDONLY)
    try:
        return parse_segment(_read_all(descriptor), owner)
    finally:
        os.close(descriptor)


def mark_done(path: str, offsets: Iterable[int], owner: QueueOwner) -> None:
    """Overwrite states of a segment, which another process may have open.

    A file without any other message is deleted if no process has it open. Raise OSError or
    NotPermittedError.
    """
    descriptor = open_private(path, os.O_RDWR)
    try:
        for offset in offsets:
            os.pwrite(descriptor, bytes((DONE,)), offset)
        if lock(descriptor):
            messages = parse_segment(_read_all(descriptor), owner).messages
            if messages and all(message.is_done for message in messages):
                os.unlink(path)
    finally:
        os.close(descriptor)


class IndexedMessage(NamedTuple):
    """A waiting message in the index. size: of its record; clock: see `QueueEntry`."""

    size: int
    topic: str
    clock: float


class QueueSegment:
    """A segment, and what is known of it while it is closed.

    number: position in the order of segments. is_dead: it contains dead letters only. index: the
    waiting messages by offset, while the file is open. An open file is locked.
    """

    def __init__(self, path: str, number: int, *, is_dead: bool) -> None:
        self.path = path
        self.number = number
        self.is_dead = is_dead
        self.is_elsewhere = False
        """True while another process has the file open."""
        self.file = LogFile(path)
        self.header: SegmentHeader | None = None
        self.index: dict[int, IndexedMessage] = {}
        self.topics: Counter[str] = Counter()
        self.count = 0
        self.bytes = 0
        """Bytes of the waiting messages."""
        self.dead = 0
        self.size = 0
        self.oldest, self.newest = math.inf, 0.0
        """Readings of the queue's clock, of the oldest and the newest message."""
        self.damaged: list[DamagedPart] = []
        self.is_unreadable = False
        """True if the file has content, but neither a header nor a message."""
        self.problem = ""
        """The reason why the file can't be read now."""
        self.is_counted = False
        """True after the damage of the file was counted."""
        self._is_known = False
        self._unwritten: dict[int, tuple[int, int]] = {}
        """Offset of the state (-1: unknown) and state, by the offset of the message."""

    @property
    def is_unknown(self) -> bool:
        """True if the file must be read to know what is in it."""
        return self.is_elsewhere or not (self.is_counted or self.problem)

    @property
    def is_finished(self) -> bool:
        """True if the segment has no waiting message and no dead letter."""
        return not self.count and not self.dead

    def open(self, owner: QueueOwner) -> bool:
        """Lock and read the file. Return False if another process has the lock.

        Raise OSError or NotPermittedError.
        """
        descriptor = open_private(self.path, os.O_RDWR)
        try:
            self.is_elsewhere = not lock(descriptor)
            if self.is_elsewhere and self._is_known:
                os.close(descriptor)
                return False
            _check_link(descriptor, self.path)
            content = parse_segment(_read_all(descriptor), owner)
        except BaseException:
            os.close(descriptor)
            raise
        messages = content.messages
        for index, message in enumerate(messages if self._unwritten else ()):
            if message.offset in self._unwritten:
                _, state = self._unwritten[message.offset]
                self._unwritten[message.offset] = (message.state_offset, state)
                messages[index] = message._replace(state=state)
        self._note(content)
        self._is_known = True
        self.file = LogFile(self.path, descriptor, self.size)
        if self.is_elsewhere:
            self.close()
            return False
        self._write_states()
        return True

    def create(self, header: SegmentHeader, room: int, limit: int) -> bool:
        """Create the file and allocate `limit` bytes, or at least `room` bytes for messages.

        Return False if another process has locked it first. Raise OSError or NotPermittedError.
        """
        descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        encoded = encode_header(header)
        self.file = LogFile(self.path, descriptor)
        try:
            if not lock(descriptor) or not os.fstat(descriptor).st_nlink:
                self.file.close()
                return False
            allocate(descriptor, limit, len(encoded) + room)
            self.file.append(encoded)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.file.close()
            raise
        self.header, self.size, self.is_counted = header, self.file.size, True
        self.newest = header.moment.clock
        return True

    def append(self, records: Sequence[bytes], entries: Sequence[QueueEntry]) -> None:
        """Write records and index their entries. Raise OSError."""
        offset = self.file.size
        self.file.append(b"".join(records))
        self.size = self.file.size
        for record, entry in zip(records, entries, strict=True):
            if self.is_dead:
                self.dead += 1
            else:
                self._add(offset, len(record), entry)
            self.newest = max(self.newest, entry.clock)
            offset += len(record)

    def read(self, offset: int, size: int, seed: int) -> QueueEntry | None:
        """Return a waiting message; None if it is not waiting any more. Raise OSError.

        Raise UnparsableError if it is damaged.
        """
        data = os.pread(self.file.descriptor, size, offset)
        record = read_record(memoryview(data), 0, seed)
        if record is None or record.trailer + 1 != size:
            raise UnparsableError("damaged")
        if data[-1] == DONE:
            return None
        return decode_entry(record.payload)

    def read_all(self, owner: QueueOwner) -> list[StoredMessage]:
        """Return the waiting messages and dead letters of the open file. Raise OSError."""
        messages = parse_segment(_read_all(self.file.descriptor), owner).messages
        return [
            each for each in messages if each.state != DONE and each.offset not in self._unwritten
        ]

    def mark(self, offset: int, state: int) -> None:
        """Overwrite the state of a waiting message; with the next change if that fails now."""
        message = self.index.pop(offset, None)
        if message is not None:
            self.topics[message.topic] -= 1
            self.count -= 1
            self.bytes -= message.size
            self.dead += state == DEAD
            self._unwritten[offset] = (offset + message.size - 1, state)
            self._write_states()
        elif not self.file.is_open:
            self._unwritten[offset] = (-1, state)

    def update_header(self, header: SegmentHeader) -> None:
        """Overwrite the header in place, if that is possible."""
        self.header = header
        with contextlib.suppress(OSError):
            os.pwrite(self.file.descriptor, encode_header(header), 0)

    def close(self) -> None:
        """Write missing states, and unlock and close the file."""
        self.index.clear()
        self._write_states()
        with contextlib.suppress(OSError):
            self.file.close()

    def _note(self, content: SegmentContent) -> None:
        """Note what is in the file."""
        self.header, self.size, self.damaged = content.header, content.size, content.damaged
        self.is_unreadable = bool(content.damaged and not content.messages and not content.header)
        self.count = self.bytes = self.dead = 0
        self.oldest, self.newest = math.inf, content.newest
        self.topics.clear()
        self.index.clear()
        for message in content.messages:
            if message.is_dead:
                self.dead += 1
            elif message.is_waiting and message.entry is not None:
                self._add(message.offset, message.size, message.entry)

    def _add(self, offset: int, size: int, entry: QueueEntry) -> None:
        """Index and count a waiting message."""
        topic = sys.intern(entry.message.topic)  # equal topics share their text
        self.index[offset] = IndexedMessage(size, topic, entry.clock)
        self.topics[topic] += 1
        self.count += 1
        self.bytes += size
        self.oldest = min(self.oldest, entry.clock)

    def _write_states(self) -> None:
        """Overwrite the states that are not written yet."""
        with contextlib.suppress(OSError):
            for offset, (position, state) in [*self._unwritten.items()]:
                if position >= 0:
                    os.pwrite(self.file.descriptor, bytes((state,)), position)
                    del self._unwritten[offset]


def lock(descriptor: int) -> bool:
    """Lock a file, and return whether that was possible. Raise OSError for a missing lock service.

    The lock belongs to the descriptor: another queue of this process does not get it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def allocate(descriptor: int, limit: int, least: int) -> None:
    """Allocate `limit` bytes of a file, or `least` bytes if there is no room for more.

    Raise OSError if there is no room. File systems without allocation allocate when writing.
    """
    before = os.fstat(descriptor).st_size
    for size in (max(limit, least), least):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in _NO_SPACE and size > least:
                os.ftruncate(descriptor, before)  # ext4 keeps what it had allocated
                continue
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
        return


def _check_link(descriptor: int, path: str) -> None:
    """Raise FileNotFoundError if a file was deleted before it was locked."""
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _read_all(descriptor: int) -> bytes:
    """Return the content of a file, up to a limit that only a damaged file exceeds."""
    size, parts, offset = min(os.fstat(descriptor).st_size, _LARGEST_FILE), list[bytes](), 0
    while offset < size and (part := os.pread(descriptor, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
