"""Blocks of values of a group of series, and the memory for them.

Blocks are parts of slabs of anonymous pages. Released blocks are reused.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPACITY = 512
"""Rows of a block."""

_MISSING = struct.pack("<d", float("nan"))
_WIDTH = 8


def summarize(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return number, sum, minimum and maximum of each row, without missing values.

    Shape: (4, rows). The minimum and maximum of a row without values are NaN.
    """
    if not rows.shape[1]:
        return summarize(np.full((len(rows), 1), np.nan))
    counts, totals = np.full(len(rows), float(rows.shape[1])), rows.sum(axis=1)
    if np.isnan(totals).any():
        is_missing = np.isnan(rows)
        counts -= is_missing.sum(axis=1)
        totals = np.where(is_missing, 0.0, rows).sum(axis=1)
    return np.stack([counts, totals, np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)])


class ValueBlock:
    """512 rows of a group: `values[row, column]`. Rows from `rows` on are not set."""

    __slots__ = ("_room", "first", "is_sealed", "memory", "rows", "summary", "values")

    def __init__(self, pool: BlockPool, first: int, width: int) -> None:
        self._room = pool.take(CAPACITY * width * _WIDTH)
        self.memory = self._room.view()[: CAPACITY * width * _WIDTH]
        self.values: NDArray[np.float64] = np.frombuffer(self.memory, np.float64).reshape(
            CAPACITY, width
        )
        self.first = first
        """Slot of the first row."""
        self.rows = 0
        self.is_sealed = False
        """True if the memory is ordered by series. Reading one series is then five times faster."""
        self.summary: NDArray[np.float64] | None = None
        """Statistics of each column of a sealed block, computed at their first use.

        A change of a sealed block sets None.
        """

    def fill(self, rows: int) -> None:
        """Set all rows from the first unset row to before `rows` to missing values."""
        if rows <= self.rows:
            return
        if self.is_sealed:
            self.values[self.rows : rows] = np.nan
        else:
            stride = len(self.memory) // CAPACITY
            missing = _MISSING * (stride // _WIDTH)
            self.memory[self.rows * stride : rows * stride] = missing * (rows - self.rows)
        self.rows = rows

    def seal(self) -> None:
        """Reorder the memory by series, if all rows are set."""
        if self.is_sealed or self.rows < CAPACITY:
            return
        turned = np.ascontiguousarray(self.values.T)
        width = turned.shape[0]
        store: NDArray[np.float64] = np.frombuffer(self.memory, np.float64).reshape(width, CAPACITY)
        store[:] = turned
        self.values = store.T
        self.is_sealed = True

    def summarize(self, columns: NDArray[np.intp], low: int, high: int) -> NDArray[np.float64]:
        """Return the statistics of some columns in a range of rows. Shape: (4, columns)."""
        if not self.is_sealed or high - low < CAPACITY:
            return summarize(self.values[low:high].T[columns])
        if self.summary is None:
            self.summary = summarize(self.values.T)
        return self.summary[:, columns]

    def release(self, pool: BlockPool) -> None:
        """Return the memory to the pool."""
        self.rows = 0
        self.summary = None
        del self.values
        try:
            self.memory.release()
        except BufferError:
            return  # in use by a reader: the slab keeps these pages
        pool.release(self._room)


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
