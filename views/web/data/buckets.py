"""Series as at most so many buckets of equal length: minimum, mean and maximum of each."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries

    Values = NDArray[np.float64]

MOST_POINTS = 600
_LONGEST = 400 * 86400
_ROUND = (
    10, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400,
)  # fmt: skip


class TimeGrid(NamedTuple):
    """Times of buckets: they begin at `start`, `start + step` and so on, `size` in all."""

    start: int
    step: int
    size: int

    @property
    def end(self) -> int:
        """The end of the last bucket."""
        return self.start + self.step * self.size


class SeriesBuckets(NamedTuple):
    """A series on a grid; NaN where it has no value."""

    low: Values
    mean: Values
    high: Values


def make_grid(start: int, end: int, frequency: int, points: int = MOST_POINTS) -> TimeGrid:
    """Return a grid over [start, end): buckets of a round length that begin at round times."""
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
    """Return the values of series, a row each, in steps of `frequency` over the grid.

    The steps of a bucket lie together. A value belongs to the step that holds its time.
    """
    each = max(1, grid.step // frequency)
    length = grid.size * each
    rows = np.full((len(found), length), np.nan)
    for row, (group, column) in zip(rows, found, strict=True):
        first, last = group.bounds()
        low = max(first, -((group.time(0) - grid.start) // group.frequency))
        high = min(last, -((group.time(0) - grid.end) // group.frequency))
        if low >= high:
            continue
        values = np.empty(high - low)
        group.read(column, low, high - low, values)
        begin = (group.time(low) - grid.start) // frequency
        if group.frequency == frequency:
            row[begin : begin + high - low] = values[: length - begin]
        else:
            places = (
                group.time(low) - grid.start + group.frequency * np.arange(high - low)
            ) // frequency
            row[places] = values
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
    """Return the buckets of each series, with the time step of the first one."""
    if not found:
        return []
    return bucket(read_rows(found, grid, find_frequency(found, grid)), grid)


def find_frequency(found: Sequence[StoredSeries], grid: TimeGrid) -> int:
    """Return the time step of series as far as the grid can hold it."""
    frequency = min(one.group.frequency for one in found)
    return frequency if grid.step % frequency == 0 else grid.step


def mean_of(values: Values, axis: int) -> Values:
    """Return means without missing values; NaN where all are missing."""
    counts = (~np.isnan(values)).sum(axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = np.nansum(values, axis=axis) / counts
    return found


def sum_of(values: Values, axis: int) -> Values:
    """Return sums without missing values; NaN where all are missing."""
    total: Values = np.nansum(values, axis=axis)
    total[np.isnan(values).all(axis=axis)] = np.nan
    return total


def max_of(values: Values, axis: int) -> Values:
    """Return the largest values; NaN where all are missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Values = np.fmax.reduce(values, axis=axis)
    return found


def last_value(found: StoredSeries, oldest: int) -> tuple[int, float] | None:
    """Return time and value of the newest value of a series since a time."""
    group, column = found
    if group.head is None:
        return None
    block = group.head
    rows = np.flatnonzero(~np.isnan(block.values[: block.rows, column]))
    if not rows.size:
        _, last = group.column_bounds(column)
        if not last:
            return None
        value = np.empty(1)
        group.read(column, last - 1, 1, value)
        when = group.time(last - 1)
        return (when, float(value[0])) if when >= oldest else None
    when = group.time(block.first + int(rows[-1]))
    return (when, float(block.values[rows[-1], column])) if when >= oldest else None


def describe(values: Iterable[float]) -> tuple[float, float, float] | None:
    """Return minimum, mean and maximum of values that are not missing; None if there are none."""
    array = np.asarray(list(values), float)
    present = array[~np.isnan(array)]
    if not present.size:
        return None
    return float(present.min()), float(present.mean()), float(present.max())
