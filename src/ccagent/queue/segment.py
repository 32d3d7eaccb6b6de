"""A segment of a queue: a file of messages whose states are overwritten in place.

The first record is the header: the sink and the machine that wrote the file, the queue's clock, and
the number of dropped messages. Each other record is one message; its trailer is a byte, its state.
Nothing that reduces the backlog needs space: states are overwritten, finished files are deleted.

The queue's clock, by which messages age, advances with the uptime of the machine, also across
restarts of the process. After a reboot only the time since that boot is added. It is therefore
never ahead of the true time, and independent of the wall clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import zlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import UnparsableError
from ccagent.queue.record_log import (
    DamagedPart,
    LogFile,
    create_file,
    frame,
    read_record,
    read_records,
)
from ccagent.records.message import Message
from ccagent.service.private_files import open_private, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

WAITING, DONE, DEAD = 0x55, 0xAA, 0x33
"""States of a message. Any two differ in at least four bits, so a flipped bit does no harm."""

_NEAREST = [
    min((WAITING, DONE, DEAD), key=lambda state: (state ^ byte).bit_count()) for byte in range(256)
]
"""The state that a byte stands for; WAITING in doubt."""

_MAGIC = b"CCQ\x01"
_HEADER = struct.Struct("<4sdd36sQ")
_MACHINE_ID = "/etc/machine-id"
_LARGEST_FILE = 128 << 20
"""Bytes that are read of a file. Only a damaged file is larger."""


class QueueEntry(msgspec.Struct, frozen=True, array_like=True):
    """One queued message.

    stored: seconds since 1970 by the wall clock when the message was queued; only for display.
    clock: seconds of the queue's clock at that time; the age is computed from it. reason, rejected:
    of a dead letter, and when it was rejected, in seconds since 1970; a queued message has no
    reason.
    """

    stored: float
    clock: float
    message: Message
    reason: str = ""
    rejected: float = 0.0


class QueuedMessage(NamedTuple):
    """One queued message, and its number in the queue."""

    number: int
    message: Message


encode_entry = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(QueueEntry)


def decode_entry(payload: memoryview | bytes) -> QueueEntry:
    """Return the entry of a payload. Raise UnparsableError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnparsableError(f"stored by another version: {error}") from error


class Moment(NamedTuple):
    """A reading of the queue's clock in seconds, with boot id and uptime in seconds."""

    clock: float
    boot: bytes
    uptime: float


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
    return QueueOwner(sink, os.uname().nodename, zlib.crc32(identity))


class SegmentHeader(NamedTuple):
    """The first record of a segment. dropped: messages of this queue that were dropped so far."""

    moment: Moment
    dropped: int
    owner: QueueOwner


class StoredMessage(NamedTuple):
    """One message of a segment.

    position: offset of its state, the last byte of its record. size: of the record in bytes.
    state: DEAD also of a message to send that can't be decoded; its entry is None.
    """

    position: int
    size: int
    state: int
    entry: QueueEntry | None

    @property
    def reason(self) -> str:
        """The reason of a dead letter."""
        if self.entry is None:
            return "stored by another version"
        return self.entry.reason or "the reason could not be stored"


class SegmentContent(NamedTuple):
    """The content of a segment.

    header: None if damaged. size: bytes up to the last record. foreign: who queued the messages of
    another sink or machine; empty for own ones.
    """

    header: SegmentHeader | None
    messages: list[StoredMessage]
    damaged: list[DamagedPart]
    size: int
    foreign: str

    @property
    def newest(self) -> float:
        """The last reading of the queue's clock."""
        clock = self.header.moment.clock if self.header is not None else 0.0
        return max((each.entry.clock for each in self.messages if each.entry), default=clock)

    @property
    def damaged_bytes(self) -> int:
        """The bytes in the damaged parts."""
        return sum(part.size for part in self.damaged)


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
        state = _NEAREST[data[record.trailer] if record.trailer < len(data) else 0]
        entry = None
        try:
            entry = decode_entry(record.payload)
        except UnparsableError:
            state = DONE if state == DONE else DEAD
        messages.append(StoredMessage(record.trailer, size - record.offset, state, entry))
    foreign = ""
    if header is not None and not header.owner.is_same(owner):
        foreign = f"queued by host {header.owner.host} for sink {header.owner.sink}"
    return SegmentContent(header, messages, damaged, size, foreign)


def read_segment(path: str, owner: QueueOwner) -> SegmentContent:
    """Read a segment without its lock. Raise OSError or NotPermittedError."""
    with contextlib.closing(LogFile(path, open_private(path, os.O_RDONLY))) as file:
        return parse_segment(file.read(0, _LARGEST_FILE), owner)


def mark_done(path: str, positions: Iterable[int]) -> None:
    """Overwrite states of a segment, which another process may have open or have deleted.

    Raise OSError or NotPermittedError.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(LogFile(path, open_private(path, os.O_RDWR))) as file,
    ):
        for position in positions:
            file.overwrite(position, bytes((DONE,)))


def delete_finished(path: str, owner: QueueOwner) -> None:
    """Delete a segment whose messages are all done, if no process has it open.

    Raise OSError or NotPermittedError.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(LogFile(path, open_private(path, os.O_RDWR))) as file,
    ):
        if lock(file.descriptor):
            messages = parse_segment(file.read(0, _LARGEST_FILE), owner).messages
            if messages and all(message.state == DONE for message in messages):
                os.unlink(path)


def lock(descriptor: int) -> bool:
    """Lock a file, and return whether that was possible. Raise OSError for a missing lock service.

    The lock belongs to the descriptor: another queue of this process does not get it. Raise
    FileNotFoundError if the file was deleted before it was locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError("deleted meanwhile")
    return True


class MemoryFile(LogFile):
    """The records of a segment in memory."""

    def __init__(self, content: bytes) -> None:
        super().__init__("", size=len(content))
        self.is_open = True
        self._content = bytearray(content)

    def append(self, records: bytes, *, is_synced: bool = False) -> None:
        """Add records. There is no disk to wait for."""
        del is_synced
        self._content += records
        self.size += len(records)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the records."""
        return bytes(self._content[offset : offset + size])

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes of the records."""
        self._content[offset : offset + len(data)] = data


class IndexedMessage(NamedTuple):
    """A message in the index. size: of its record; clock: see `QueueEntry`."""

    size: int
    topic: str
    clock: float


class QueueSegment:
    """A segment in a file or in memory, and what is known of it while its file is closed.

    path: empty in memory. number: position in the order of segments. is_dead: it contains dead
    letters only. index: its messages that are not done by position, while the file is open. An open
    file is locked.
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
        self.count = self.bytes = 0
        """Number and bytes of the messages."""
        self.dead = 0
        """Number of dead letters among messages, whose reason could not be stored."""
        self.newest = 0.0
        """Reading of the queue's clock, of the newest message."""
        self.problem = ""
        """The reason why the file can't be read now."""
        self.is_counted = False
        """True after the damage of the file was counted."""
        self._unwritten: dict[int, int] = {}
        """States that could not be written yet, by position."""

    @property
    def is_finished(self) -> bool:
        """True if the segment has neither a message nor a dead letter."""
        return not self.count and not self.dead

    def open(self, owner: QueueOwner) -> SegmentContent | None:
        """Lock and read the file. Return its content; None if another process has the lock.

        Raise OSError or NotPermittedError.
        """
        self.file = file = LogFile(self.path, open_private(self.path, os.O_RDWR), self.file.size)
        try:
            self.is_elsewhere = not lock(file.descriptor)
            content = parse_segment(file.read(0, _LARGEST_FILE), owner)
            self._note(content)
        except BaseException:
            self.close()
            raise
        if self.is_elsewhere:
            self.close()
            return None
        return content

    def begin(self, header: SegmentHeader) -> None:
        """Begin a new segment in memory."""
        self.header, self.newest, self.is_counted = header, header.moment.clock, True
        self.file = MemoryFile(encode_header(header))

    def store(self, path: str, room: int, *, is_synced: bool) -> None:
        """Move the segment from memory to a new file of `room` bytes, if there are as many.

        Raise FileExistsError, also if another process has locked the file first. Raise OSError or
        NotPermittedError. The segment then stays in memory.
        """
        with create_file(path) as file:
            if not lock(file.descriptor):
                raise FileExistsError(path)
            file.allocate(room)
            file.append(self.file.read(0, self.file.size), is_synced=is_synced)
            if is_synced:
                sync_directory(os.path.dirname(path))
        self.path, self.file = path, file

    def rescue(self) -> None:
        """Move the segment from an open file to memory. Raise OSError."""
        content = self.file.read(0, self.file.size)
        with contextlib.suppress(OSError):
            self.file.close()
        self.path, self.file = "", MemoryFile(content)
        self._write_states()

    def append(self, record: bytes, entry: QueueEntry, *, is_synced: bool) -> None:
        """Write a record and index its entry. Raise OSError."""
        self.file.append(record, is_synced=is_synced)
        self._add(self.file.size - 1, len(record), entry)
        self.newest = max(self.newest, entry.clock)

    def read(self, position: int, seed: int) -> QueueEntry | None:
        """Return an indexed message; None if another process has finished it. Raise OSError.

        Raise UnparsableError if it is damaged.
        """
        size = self.index[position].size
        data = self.file.read(position + 1 - size, size)
        record = read_record(memoryview(data), 0, seed)
        if record is None or record.trailer + 1 != size:
            raise UnparsableError("damaged")
        return None if data[-1] == DONE else decode_entry(record.payload)

    def mark(self, position: int, state: int) -> None:
        """Overwrite the state of a message; with the next change if that fails now."""
        message = self.index.pop(position, None)
        if message is None and self.file.is_open:
            return
        if message is not None:
            self.topics[message.topic] -= 1
            self.count -= 1
            self.bytes -= message.size
            self.dead += state == DEAD
        self._unwritten[position] = state
        self._write_states()

    def count_dropped(self, dropped: int) -> None:
        """Overwrite the number in the header, if that is possible."""
        if self.header is not None:
            self.header = self.header._replace(dropped=dropped)
            with contextlib.suppress(OSError):
                self.file.overwrite(0, encode_header(self.header))

    def close(self) -> None:
        """Write missing states, and unlock and close the file."""
        self.index.clear()
        self._write_states()
        with contextlib.suppress(OSError):
            self.file.close()

    def _note(self, content: SegmentContent) -> None:
        """Note what is in the file."""
        self.header, self.newest, self.file.size = content.header, content.newest, content.size
        self.count = self.bytes = self.dead = 0
        self.topics.clear()
        self.index.clear()
        for message in content.messages:
            state = self._unwritten.get(message.position, message.state)
            if message.entry is not None and state == (DEAD if self.is_dead else WAITING):
                self._add(message.position, message.size, message.entry)
            else:
                self.dead += state != DONE

    def _add(self, position: int, size: int, entry: QueueEntry) -> None:
        """Index and count a message."""
        topic = sys.intern(entry.message.topic)  # equal topics share their text
        self.index[position] = IndexedMessage(size, topic, entry.clock)
        self.topics[topic] += 1
        self.count += 1
        self.bytes += size

    def _write_states(self) -> None:
        """Overwrite the states that are not written yet."""
        with contextlib.suppress(OSError):
            for position, state in [*self._unwritten.items()]:
                self.file.overwrite(position, bytes((state,)))
                del self._unwritten[position]
