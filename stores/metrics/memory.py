"""Memory of the blocks: slabs of anonymous pages, in which released blocks are reused."""

from __future__ import annotations

import mmap
from typing import NamedTuple

_SLAB = 32 << 20
_PAGE = mmap.PAGESIZE


class BlockRoom(NamedTuple):
    """A part of a slab. Its size is a multiple of a page."""

    slab: mmap.mmap
    offset: int
    size: int

    def view(self) -> memoryview:
        """Return its bytes."""
        return memoryview(self.slab)[self.offset : self.offset + self.size]


class BlockPool:
    """Hands out rooms, and takes them back for those who ask for the same size later.

    The kernel gives a page when it is first touched. The pages of a released room go back to it.
    """

    def __init__(self) -> None:
        self._slab: mmap.mmap | None = None
        self._used = 0
        self._free: dict[int, list[BlockRoom]] = {}
        self.in_use = 0
        """Bytes of all rooms that were taken and not released."""
        self.reused = 0
        """Number of rooms that were handed out again."""

    def take(self, size: int) -> BlockRoom:
        """Return a room of at least `size` bytes."""
        size = -(-size // _PAGE) * _PAGE
        self.in_use += size
        free = self._free.get(size)
        if free:
            self.reused += 1
            return free.pop()
        if size > _SLAB // 4:
            return BlockRoom(_map(size), 0, size)
        if self._slab is None or self._used + size > _SLAB:
            self._keep_rest()
            self._slab, self._used = _map(_SLAB), 0
        room = BlockRoom(self._slab, self._used, size)
        self._used += size
        return room

    def release(self, room: BlockRoom) -> None:
        """Take a room back. Nobody may use its bytes any more."""
        self.in_use -= room.size
        room.slab.madvise(mmap.MADV_DONTNEED, room.offset, room.size)
        self._free.setdefault(room.size, []).append(room)

    def _keep_rest(self) -> None:
        """Keep what is left of the last slab for a block that fits exactly."""
        if self._slab is not None and self._used < _SLAB:
            rest = BlockRoom(self._slab, self._used, _SLAB - self._used)
            self._free.setdefault(rest.size, []).append(rest)


def _map(size: int) -> mmap.mmap:
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A huge page would be filled with zeros as soon as one value in it is written.
    found.madvise(mmap.MADV_NOHUGEPAGE)
    return found
