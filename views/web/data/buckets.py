"""Series as a limited number of equal buckets with minimum, mean and maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries

    Values = NDArray[np.float64]

_LONGEST = 400 * 86400
_MOST_CELLS = 4_000_000
_ROUND = (
    10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400,
)  # fmt: skip


class TimeGrid(NamedTuple):
    """Times of buckets. `size` buckets start at `start`, `start + step` and so on."""

    start: int
    step: int
    size: int

    @property
    def end(self) -> int:
        """Return the end of the last bucket in seconds since 1970."""
        return self.start + self.step * self.size


class SeriesBuckets(NamedTuple):
    """A series on a grid; NaN for missing values."""

    low: Values
    mean: Values
    high: Values


def make_grid(start: int, end: int, frequency: int, points: int) -> TimeGrid:
    """Return a grid of at most `points` buckets over [start, end), with round lengths and times."""
    end = max(start + 1, end)
    start = max(start, end - _LONGEST)
    frequency = max(1, frequency)
    steps = [frequency, *(one for one in _ROUND if one % frequency == 0 and one > frequency)]
    for width in steps:
        first = start // width * width
        count = -(-(end - first) // width)
        if count <= points:
            return TimeGrid(first, width, count)
    width = frequency * max(1, -(-(end - start) // ((points - 1) * frequency)))
    first = start // width * width
    return TimeGrid(first, width, -(-(end - first) // width))


def read_rows(found: Sequence[StoredSeries], grid: TimeGrid, frequency: int) -> Values:
    """Return the values of series, one row per series, in steps of `frequency` over the grid.

    The steps of a bucket are adjacent. A value belongs to the step that contains its time.
    """
    length = grid.size * max(1, grid.step // frequency)
    rows = np.full((len(found), length), np.nan)
    groups: dict[int, list[int]] = {}
    for number, one in enumerate(found):
        groups.setdefault(id(one.group), []).append(number)
    for numbers in groups.values():
        group = found[numbers[0]].group
        columns = [found[number].column for number in numbers]
        start = group.time(0)
        low = -((start - grid.start) // group.frequency)
        high = -((start - grid.end) // group.frequency)
        for begin, block in group.blocks.items():
            first, last = max(low, begin), min(high, begin + block.rows)
            if first >= last:
                continue
            values = block.values[first - begin : last - begin, columns]
            place = (start + first * group.frequency - grid.start) // frequency
            if group.frequency == frequency:
                end = min(place + last - first, rows.shape[1])
                rows[numbers, place:end] = values[: end - place].T
                continue
            times = start - grid.start + group.frequency * np.arange(first, last)
            rows[np.array(numbers)[:, None], times // frequency] = values.T
    return rows


def bucket(rows: Values, grid: TimeGrid) -> list[SeriesBuckets]:
    """Return the buckets of each row."""
    shaped = rows.reshape(rows.shape[0], grid.size, -1)
    if shaped.shape[2] == 1:
        flat = shaped[:, :, 0]
        return [SeriesBuckets(one, one, one) for one in flat]
    low, high = np.fmin.reduce(shaped, axis=2), np.fmax.reduce(shaped, axis=2)
    mean = mean_of(shaped, 2)
    return [SeriesBuckets(*each) for each in zip(low, mean, high, strict=True)]


def read_buckets(found: Sequence[StoredSeries], grid: TimeGrid) -> list[SeriesBuckets]:
    """Return the buckets of each series, read with the smallest time step of all series."""
    return [one for rows in _read_in_parts(found, grid) for one in bucket(rows, grid)]


def read_means(found: Sequence[StoredSeries], grid: TimeGrid) -> Values:
    """Return the mean of each bucket, one row per series."""
    parts = [
        mean_of(rows.reshape(len(rows), grid.size, -1), 2) for rows in _read_in_parts(found, grid)
    ]
    return np.concatenate(parts)


def _read_in_parts(found: Sequence[StoredSeries], grid: TimeGrid) -> Iterator[Values]:
    """Yield the rows of series in parts with a limited memory size."""
    if not found:
        return
    frequency = find_frequency(found, grid)
    count = max(1, _MOST_CELLS // (grid.size * max(1, grid.step // frequency)))
    for begin in range(0, len(found), count):
        yield read_rows(found[begin : begin + count], grid, frequency)


def find_frequency(found: Sequence[StoredSeries], grid: TimeGrid) -> int:
    """Return the smallest time step of series, or the grid's step if it is no multiple of that."""
    frequency = min(one.group.frequency for one in found)
    return frequency if grid.step % frequency == 0 else grid.step


def mean_of(values: Values, axis: int) -> Values:
    """Return means without missing values; NaN if all values are missing."""
    is_missing = np.isnan(values)
    counts = values.shape[axis] - is_missing.sum(axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = np.where(is_missing, 0.0, values).sum(axis=axis) / counts
    return found
