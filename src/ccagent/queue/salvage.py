"""Recovery of messages from the bytes of a damaged database file.

Entries start with a magic number and have a checksum. Each is found and verified separately, even
if the pages around it are damaged. Source of the layout: sqlite.org/fileformat2.html, 1.6
(cells of table leaf pages and overflow pages) and 4.1 (frames of the write-ahead log).
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

from ccagent.errors import UnparsableError
from ccagent.queue.entry import HEAD, MAGIC, QueueEntry, decode_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    Content = bytes | mmap

PAGE_SIZE = 4096
"""Page size of every queue's database, in bytes."""

_WAL_HEAD = struct.Struct(">IIIIIIII")
_FRAME_HEAD = struct.Struct(">IIIIII")
_STEP = _FRAME_HEAD.size + PAGE_SIZE
_PAGE_NUMBER = struct.Struct(">I")
_LITTLE_ENDIAN = b"\x37\x7f\x06\x82"
"""The first bytes of a log with little-endian checksums."""
_BLOB = 12
_LONGEST_START = 600
"""Maximum bytes of a cell before the entry: lengths, the record's header, and the topic."""


def salvage(database: Content, log: Content = b"") -> Iterator[tuple[bool, int, QueueEntry]]:
    """Return the undamaged entries in a database file and its write-ahead log, by number.

    Each is a tuple: whether it is a dead letter, its number, the entry.
    """
    pages = _DatabasePages(database, log)
    places: dict[tuple[bool, int], tuple[int, int]] = {}
    for number in pages.numbers():
        page = pages.page(number)
        at = page.find(MAGIC)
        while at >= 0:
            cell = pages.entry_at(page, at)
            if cell is not None:
                is_letter, row, _ = cell
                places.setdefault((is_letter, row), (number, at))
            at = page.find(MAGIC, at + 1)
    for _, (number, at) in sorted(places.items()):
        cell = pages.entry_at(pages.page(number), at)
        if cell is not None:
            yield cell


class _DatabasePages:
    """The pages of a database file, or their latest versions in its write-ahead log."""

    def __init__(self, database: Content, log: Content) -> None:
        self._database = database
        self._log = log
        self._changed = dict(_read_frames(log))

    def numbers(self) -> Iterator[int]:
        """Return the numbers of all pages. Pages in the log are first, because they are newer."""
        yield from self._changed
        for number in range(1, len(self._database) // PAGE_SIZE + 2):
            if number not in self._changed:
                yield number

    def page(self, number: int) -> bytes:
        """Return the latest content of a page; empty if the page does not exist."""
        begin = self._changed.get(number)
        if begin is not None:
            return self._log[begin : begin + PAGE_SIZE]
        begin = (number - 1) * PAGE_SIZE
        return self._database[begin : begin + PAGE_SIZE]

    def entry_at(self, page: bytes, at: int) -> tuple[bool, int, QueueEntry] | None:
        """Return the entry with its magic number at an offset; None if the entry is damaged.

        It is a tuple: whether it is a dead letter, its number, the entry.
        """
        for begin in range(at - 5, max(-1, at - _LONGEST_START), -1):
            cell = _parse_cell(page, begin, at)
            if cell is None:
                continue
            payload, number, offset, length, columns = cell
            if columns not in {3, 4}:
                continue
            content = self._payload(page, begin + offset, payload, at, length)
            try:
                return columns == 4, number, decode_entry(content)
            except UnparsableError:
                continue
        return None

    def _payload(self, page: bytes, begin: int, payload: int, at: int, length: int) -> bytes:
        """Return `length` bytes, from offset `at`, of a payload that starts at `begin`."""
        usable = PAGE_SIZE
        local = payload
        if payload > usable - 35:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (payload - least) % (usable - 4)
            if local > usable - 35:
                local = least
        parts = [page[at : begin + local]]
        missing = length - len(parts[0])
        following = page[begin + local : begin + local + 4]
        while missing > 0 and len(following) == 4:
            (number,) = _PAGE_NUMBER.unpack(following)
            overflow = self.page(number) if number else b""
            if not overflow:
                break
            parts.append(overflow[4 : 4 + min(missing, usable - 4)])
            missing -= len(parts[-1])
            following = overflow[:4]
        return b"".join(parts)


def _parse_cell(page: bytes, begin: int, at: int) -> tuple[int, int, int, int, int] | None:
    """Parse the start of a table leaf cell whose last column is the entry at offset `at`.

    Return bytes of the payload, number of the row, offset of the payload from `begin`, bytes of
    the entry, number of columns; None if no such cell starts at `begin`.
    """
    payload, position = _parse_varint(page, begin)
    number, position = _parse_varint(page, position)
    start = position
    header, position = _parse_varint(page, position)
    if not HEAD.size < payload < 1 << 31 or not 1 < header < 64 or position >= at:
        return None
    types: list[int] = []
    while position < start + header and len(types) < 6:
        kind, position = _parse_varint(page, position)
        types.append(kind)
    if position != start + header or not types:
        return None
    sizes = [_size_of(kind) for kind in types]
    if types[-1] < _BLOB or types[-1] % 2 or position + sum(sizes[:-1]) != at:
        return None
    if header + sum(sizes) != payload:
        return None
    return payload, number, start - begin, sizes[-1], len(types)


def _parse_varint(page: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at a position, and the position after it."""
    value = 0
    for index in range(9):
        if not 0 <= position < len(page):
            return -1, len(page)
        byte = page[position]
        position += 1
        if index == 8:
            return value << 8 | byte, position
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value, position


def _size_of(kind: int) -> int:
    """Return the bytes of a column by its serial type."""
    if kind >= _BLOB:
        return (kind - _BLOB) // 2
    return (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind] if kind < 10 else 1 << 40


def is_log_damaged(log: Content) -> bool:
    """Return whether a checksum in a write-ahead log is wrong, up to its last commit.

    SQLite ignores the log after the first wrong checksum. Source: sqlite.org/fileformat2.html, 4.2.
    """
    frames = {offset for _, offset in _read_frames(log)}
    if not frames:
        return False
    order = "<" if log[:4] == _LITTLE_ENDIAN else ">"
    sums = _update_checksum(order, log[: _WAL_HEAD.size - 8], (0, 0))
    if sums != _WAL_HEAD.unpack_from(log)[6:8]:
        return True
    for offset in range(_WAL_HEAD.size + _FRAME_HEAD.size, max(frames) + 1, _STEP):
        head = log[offset - _FRAME_HEAD.size : offset]
        sums = _update_checksum(order, head[:8], sums)
        sums = _update_checksum(order, log[offset : offset + PAGE_SIZE], sums)
        # The salt identifies the frames of this log. The checksum does not cover it.
        if offset not in frames or sums != _FRAME_HEAD.unpack(head)[4:6]:
            return True
    return False


def _update_checksum(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Return the checksum of a log, continued over more content."""
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _read_frames(log: Content) -> Iterator[tuple[int, int]]:
    """Return the numbers and offsets of the committed pages in a write-ahead log."""
    heads = [
        (begin, *_FRAME_HEAD.unpack_from(log, begin)[:4])
        for begin in range(_WAL_HEAD.size, len(log) - _STEP + 1, _STEP)
    ]
    if not heads:
        return
    salt = _WAL_HEAD.unpack_from(log)[4:6]
    salts = Counter(head[3:5] for head in heads)
    if salt not in salts:  # the header is damaged
        ((salt, _),) = salts.most_common(1)
        first = heads[0][3:5]
        # Frames of the previous log can follow. Each new log increments the first salt.
        if salts[first] > 1 or first[0] == (salt[0] + 1) & 0xFFFFFFFF:
            salt = first
    uncommitted: list[tuple[int, int]] = []
    for begin, number, commit, *frame_salt in heads:
        # The frames of an earlier log follow, or the frame is damaged.
        if tuple(frame_salt) != salt:
            continue
        uncommitted.append((number, begin + _FRAME_HEAD.size))
        if commit:
            yield from uncommitted
            uncommitted = []
