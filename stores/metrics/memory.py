"""Memory of the blocks: slabs of anonymous pages. Released blocks are reused."""

from __future__ import annotations

import mmap
from typing import NamedTuple

_SLAB = 32 << 20
_PAGE = mmap.PAGESIZE


class BlockRoom(NamedTuple):
    """A part of a slab. size: in bytes, a multiple of the page size."""

    slab: mmap.mmap
    offset: int
    size: int

    def view(self) -> memoryview:
        """Return the bytes of the room."""
        return memoryview(self.slab)[self.offset : self.offset + self.size]


class BlockPool:
    """Allocates rooms, and reuses released rooms for requests of the same size.

    The kernel allocates a page at its first use. `release` returns the pages to the kernel.
    """

    def __init__(self) -> None:
        self._slab: mmap.mmap | None = None
        self._used = 0
        self._free: dict[int, list[BlockRoom]] = {}
        self.in_use = 0
        """Size in bytes of all allocated rooms."""
        self.reused = 0
        """Number of reused rooms."""

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
        """Release a room. Its bytes must not be used afterwards."""
        self.in_use -= room.size
        room.slab.madvise(mmap.MADV_DONTNEED, room.offset, room.size)
        self._free.setdefault(room.size, []).append(room)

    def _keep_rest(self) -> None:
        """Keep the rest of the last slab for a block of exactly this size."""
        if self._slab is not None and self._used < _SLAB:
            rest = BlockRoom(self._slab, self._used, _SLAB - self._used)
            self._free.setdefault(rest.size, []).append(rest)


def _map(size: int) -> mmap.mmap:
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # With huge pages, the first value would fill a whole huge page with zeros.
    found.madvise(mmap.MADV_NOHUGEPAGE)
    return found
