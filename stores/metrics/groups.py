"""Groups of series with the same start. Their values are in shared blocks, a row for each step."""

from __future__ import annotations

import math
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.blocks import CAPACITY, ValueBlock, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.blocks import BlockPool

    Row = memoryview[float] | NDArray[np.float64]
    """Values of a group at one time, by column."""

Path = tuple[str, ...]
"""Cluster, node and names of components, such as `socket0`."""

_WIDTH = 8

_EARLY = 8
"""Rows of a group up to which it gets further columns: its values are then copied."""

_MOST_WIDENED = 4
"""Maximum number of widenings of a group: each one is described in the log."""


class SeriesGroup:
    """Series of one node with about the same start, and one time step. Each series is a column.

    A slot contains one value of each series. Slot 0 starts half a step before the first value. A
    value that is early or late by less than half a step stays in its slot. Values older than the
    first one have negative slots. Gaps between blocks need no memory.
    """

    __slots__ = (
        "blocks", "frequency", "head", "head_first", "levels", "metrics", "number", "segment",
        "start", "stride", "widened", "width",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        start: int,
        frequency: int,
        runs: Sequence[tuple[StoreLevel, Sequence[str]]] = (),
    ) -> None:
        """Set the series: levels, and the metrics of consecutive columns."""
        self.number = number
        self.start = start
        self.frequency = frequency
        self.levels: list[StoreLevel] = []
        self.metrics: list[str] = []
        """Level and metric of each column: in two lists, because a tuple takes 72 bytes."""
        self._name(runs)
        self.width = len(self.metrics)
        self.stride = self.width * _WIDTH
        self.blocks: dict[int, ValueBlock] = {}
        """Blocks by their first slots."""
        self.head: ValueBlock | None = None
        """The newest block."""
        self.head_first = 0
        self.segment = -1
        """Number of the log segment that describes the group."""
        self.widened = 0
        """Number of widenings."""

    def can_widen(self, start: int) -> bool:
        """Return whether series whose slot 0 has this start can become columns of this group."""
        slot, phase = divmod(start - self.start, self.frequency)
        return (
            self.widened < _MOST_WIDENED
            and not phase
            and 0 <= slot < _EARLY
            and len(self.blocks) == 1
            and self.head is not None
            and self.head.rows <= _EARLY
        )

    def _name(self, runs: Sequence[tuple[StoreLevel, Sequence[str]]]) -> None:
        for level, metrics in runs:
            self.levels += [level] * len(metrics)
            self.metrics += metrics

    def widen(self, pool: BlockPool, runs: Sequence[tuple[StoreLevel, Sequence[str]]]) -> None:
        """Add columns after the present ones."""
        self._name(runs)
        for begin, block in self.blocks.items():
            wider = ValueBlock(pool, begin, len(self.metrics))
            wider.fill(block.rows)
            wider.values[: block.rows, : self.width] = block.values[: block.rows]
            block.release(pool)
            self.blocks[begin] = self.head = wider
        self.width = len(self.metrics)
        self.stride = self.width * _WIDTH
        self.widened += 1
        self.segment = -1

    def slot(self, time: int) -> int:
        """Return the slot of a time."""
        return (time - self.start) // self.frequency

    def time(self, slot: int) -> int:
        """Return the time of a slot."""
        return self.start + self.frequency // 2 + slot * self.frequency

    def write_run(self, pool: BlockPool, time: int, first: int, packed: bytes | memoryview) -> None:
        """Write values of consecutive columns at one time. packed: the values as float64."""
        row = (time - self.start) // self.frequency - self.head_first
        block = self.head
        if block is None or not 0 <= row < CAPACITY or block.is_sealed:
            values = np.frombuffer(packed)
            np.asarray(self.open_row(pool, time))[first : first + len(values)] = values
            return
        stride = self.stride
        if row >= block.rows:
            if len(packed) == stride:
                if row > block.rows:
                    block.fill(row)
                block.rows = row + 1
            else:
                block.fill(row + 1)
        begin = row * stride + first * _WIDTH
        block.memory[begin : begin + len(packed)] = packed

    def write_present(self, pool: BlockPool, time: int, first: int, packed: bytes) -> bytes:
        """Write values of consecutive columns as `write_run`, without the missing ones (NaN).

        Return the values that the columns have then.
        """
        row = (time - self.start) // self.frequency - self.head_first
        if self.head is not None and self.head.rows <= row < CAPACITY:
            self.write_run(pool, time, first, packed)
            return packed
        values = np.frombuffer(packed)
        present = np.asarray(self.open_row(pool, time))[first : first + len(values)]
        np.copyto(present, values, where=~np.isnan(values))
        return present.tobytes()

    def open_row(self, pool: BlockPool, time: int) -> Row:
        """Return the row of a time. Its columns can be set."""
        slot = (time - self.start) // self.frequency
        block = self.head
        row = slot - self.head_first
        if block is None or not 0 <= row < CAPACITY:
            block = self._block(pool, slot)
            row = slot - block.first
        if row >= block.rows:
            block.fill(row + 1)
        if block.is_sealed:
            block.summary = None
            values: NDArray[np.float64] = block.values[row]
            return values
        begin = row * self.stride
        return block.memory[begin : begin + self.stride].cast("d")

    def write_value(self, pool: BlockPool, time: int, column: int, value: float) -> None:
        """Write one value. A missing one changes nothing: the log has whole rows."""
        if not math.isnan(value):
            self.open_row(pool, time)[column] = value

    def write_column(
        self,
        pool: BlockPool,
        column: int,
        slots: NDArray[np.int64],
        values: NDArray[np.float64],
    ) -> None:
        """Write values of one column. slots: in ascending order."""
        numbers = slots // CAPACITY
        for number in np.unique(numbers).tolist():
            first, last = np.searchsorted(numbers, [number, number + 1]).tolist()
            block = self._block(pool, number * CAPACITY)
            rows = slots[first:last] - block.first
            block.fill(int(rows[-1]) + 1)
            block.summary = None
            block.values[rows, column] = values[first:last]

    def read(self, column: int, first: int, count: int, into: NDArray[np.float64]) -> None:
        """Copy the values of `count` slots from `first` into `into`; NaN for missing values."""
        last = first + count
        is_complete = False
        for begin, block in self.blocks.items():
            low, high = max(first, begin), min(last, begin + block.rows)
            if low >= high:
                continue
            if high - low == count:
                is_complete = True
            elif not is_complete:
                into[:count] = np.nan
                is_complete = True
            into[low - first : high - first] = block.values[low - begin : high - begin, column]
        if not is_complete:
            into[:count] = np.nan

    def read_columns(
        self, columns: NDArray[np.intp], first: int, count: int
    ) -> NDArray[np.float64]:
        """Return the values of columns in `count` slots from `first`. Shape: (columns, count)."""
        found, filled = np.empty((len(columns), count)), 0
        for block, low, high in self._parts(first, first + count):
            begin = block.first + low - first
            found[:, filled:begin] = np.nan
            filled = begin + high - low
            found[:, begin:filled] = block.values[low:high].T[columns]
        found[:, filled:] = np.nan
        return found

    def summarize(self, columns: NDArray[np.intp], first: int, count: int) -> NDArray[np.float64]:
        """Return the statistics of columns in `count` slots from `first`. Shape: (4, columns).

        Whole sealed blocks are looked up. Sums are added in pairs within a block, and then block
        by block in the order of time.
        """
        parts = [
            block.summarize(columns, low, high)
            for block, low, high in self._parts(first, first + count)
        ]
        if len(parts) < 2:
            return parts[0] if parts else summarize(np.empty((len(columns), 0)))
        found = np.array(parts)
        sums = np.add.reduce(found[:, :2])
        return np.stack(
            [*sums, np.fmin.reduce(found[:, 2], axis=0), np.fmax.reduce(found[:, 3], axis=0)]
        )

    def has_values(self, columns: NDArray[np.intp], slot: int) -> NDArray[np.bool_]:
        """Return for each column whether it has a value in a slot."""
        for block, row, _ in self._parts(slot, slot + 1):
            found: NDArray[np.bool_] = ~np.isnan(block.values[row, columns])
            return found
        return np.zeros(len(columns), bool)

    def _parts(self, first: int, last: int) -> Iterator[tuple[ValueBlock, int, int]]:
        """Yield the blocks with slots of a range, oldest first, and their ranges of rows."""
        for block in self.ordered_blocks():
            low, high = max(first - block.first, 0), min(last - block.first, block.rows)
            if low < high:
                yield block, low, high

    def bounds(self) -> tuple[int, int]:
        """Return the first slot of the blocks, and the slot after the last set row."""
        if not self.blocks:
            return 0, 0
        lasts = (begin + block.rows for begin, block in self.blocks.items())
        return min(self.blocks), max(lasts)

    def column_bounds(self, column: int) -> tuple[int, int]:
        """Return the first slot with a value in this column, and the slot after the last one."""
        for block in self.ordered_blocks():
            found = np.flatnonzero(~np.isnan(block.values[: block.rows, column]))
            if found.size:
                first = block.first + int(found[0])
                break
        else:
            return 0, 0
        for block in reversed(self.ordered_blocks()):
            found = np.flatnonzero(~np.isnan(block.values[: block.rows, column]))
            if found.size:
                return first, block.first + int(found[-1]) + 1
        return 0, 0

    def release_before(self, pool: BlockPool, time: int) -> int:
        """Release the blocks that end before a time. Return their number."""
        old = [
            begin for begin, block in self.blocks.items() if self.time(begin + block.rows) < time
        ]
        for begin in old:
            self.blocks.pop(begin).release(pool)
        if self.head is not None and self.head_first in old:
            self._find_head()
        return len(old)

    def ordered_blocks(self) -> list[ValueBlock]:
        """Return the blocks, oldest first."""
        return [self.blocks[begin] for begin in sorted(self.blocks)]

    def _find_head(self) -> None:
        self.head_first = max(self.blocks, default=0)
        self.head = self.blocks.get(self.head_first)

    def _block(self, pool: BlockPool, slot: int) -> ValueBlock:
        """Return the block of a slot. Create it if it is missing."""
        begin = slot // CAPACITY * CAPACITY
        block = self.blocks.get(begin)
        if block is None:
            block = self.blocks[begin] = ValueBlock(pool, begin, self.width)
            if self.head is None or begin > self.head_first:
                if self.head is not None:
                    self.head.seal()
                self.head, self.head_first = block, begin
        return block


class StoredSeries(NamedTuple):
    """The group and column of a metric at a level."""

    group: SeriesGroup
    column: int


_make_place = partial(tuple.__new__, StoredSeries)  # pyright: ignore[reportUnknownMemberType]
"""Makes a StoredSeries of group and column, twice as fast as its class."""


class StoreLevel:
    """A cluster, node or component, with its series by metric and its child levels."""

    __slots__ = ("_new", "_series", "children", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.children: dict[str, StoreLevel] = {}
        self._series: dict[str, StoredSeries] = {}
        self._new: list[tuple[SeriesGroup, int, int]] = []
        """Columns that are not in `_series` yet: group, first column and number."""

    @property
    def series(self) -> dict[str, StoredSeries]:
        """The series by metric.

        They are made at their first use: a start makes millions, and most are only written.
        """
        for group, first, count in self._new:
            metrics = group.metrics[first : first + count]
            places = map(_make_place, zip(repeat(group), range(first, first + count), strict=False))
            self._series.update(zip(metrics, places, strict=True))
        self._new.clear()
        return self._series

    def add(self, group: SeriesGroup, first: int, count: int) -> None:
        """Add the series of consecutive columns of a group. None of them may exist."""
        self._new.append((group, first, count))

    def find(self, path: Sequence[str]) -> StoreLevel | None:
        """Return the level at a relative path; None if it does not exist."""
        level: StoreLevel | None = self
        for name in path:
            if level is None:
                return None
            level = level.children.get(name)
        return level

    def make(self, path: Sequence[str]) -> StoreLevel:
        """Return the level at a relative path. Create missing levels."""
        level = self
        for name in path:
            below = level.children.get(name)
            if below is None:
                below = level.children[name] = StoreLevel((*level.path, name))
            level = below
        return level

    def select(self, selector: Sequence[str | Sequence[str]]) -> Iterator[StoreLevel]:
        """Yield the levels of a selector. Each element is a name or a list of names."""
        if not selector:
            yield self
            return
        element, *rest = selector
        for name in (element,) if isinstance(element, str) else element:
            below = self.children.get(name)
            if below is not None:
                yield from below.select(rest)

    def find_series(self, metric: str) -> Iterator[StoredSeries]:
        """Yield this level's series of a metric, else the series of the nearest levels below."""
        own = self.series.get(metric)
        if own is not None:
            yield own
            return
        for below in self.children.values():
            yield from below.find_series(metric)

    def walk(self) -> Iterator[StoreLevel]:
        """Yield this level and all levels below."""
        yield self
        for below in self.children.values():
            yield from below.walk()
