"""Resampling of series for charts, by largest triangles.

Source: S. Steinarsson, Downsampling Time Series for Visual Representation, 2013. The reference
differs: the average of the next bucket includes one more value, and a missing value in the next
bucket makes the result missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Choice = Callable[[list[NDArray[np.float64]], NDArray[np.float64]], None]
    """A function such as choose_values."""


FEWEST = 1000
"""Minimum number of values for resampling."""


def resample(rows: list[NDArray[np.float64]], step: int) -> NDArray[np.float64]:
    """Resample rows of the same length to one value per `step` values. Shape: (rows, results)."""
    wanted = len(rows[0]) // step
    if wanted <= 2:
        return np.array([row[[0, -1]] for row in rows])
    results = np.empty((len(rows), wanted))
    choose(rows, results)
    return results


def choose_values(rows: list[NDArray[np.float64]], results: NDArray[np.float64]) -> None:
    """Write the first and last value of each row, and one of each bucket between them.

    rows: contiguous, of the same length. results: of each row three or more, at most half as many
    as values. The value of a bucket has the largest triangle with the chosen value before and the
    average of the next bucket.
    """
    # By time and row, and with few operations: their number decides, not the number of rows.
    values = np.array(rows).T.copy()
    ends, highs = _bounds(len(values), results.shape[1])
    averages = _averages(values, ends, highs)
    times = np.arange(len(values), dtype=np.float64)[:, None]
    numbers = np.arange(len(rows), dtype=np.intp)
    chosen, value, low = np.zeros(len(rows)), values[0], 1
    results[:, 0], results[:, -1] = value, values[-1]
    for number, (end, high, average) in enumerate(zip(ends, highs, averages, strict=True), 1):
        area = values[low:end] - value
        area *= chosen - (end + high) / 2
        area -= (chosen - times[low:end]) * (average - value)
        np.abs(area, out=area)
        area[np.isnan(area)] = -1.0
        best = area.argmax(axis=0)
        # Without any area the reference continues from the first value of the row.
        best = np.where(area[best, numbers] < 0, 0, best + low)
        value = values[best, numbers]
        results[:, number] = np.where(np.isnan(average), average, value)
        chosen, low = best.astype(np.float64), end


def _bounds(count: int, wanted: int) -> tuple[list[int], list[int]]:
    """Return the end of each bucket, and the last index of the next bucket."""
    size = (count - 2) / (wanted - 2)
    highs = [min(int((number + 2) * size) + 1, count - 2) for number in range(wanted - 2)]
    return [int(size) + 1, *highs[:-1]], highs


def _averages(
    values: NDArray[np.float64], ends: list[int], highs: list[int]
) -> NDArray[np.float64]:
    """Return the averages of the next buckets, by bucket and row. Values are added one by one."""
    first, last = np.array(ends), np.array(highs)
    sums = np.zeros((len(ends), values.shape[1]))
    for offset in range(int((last - first).max()) + 1):
        is_within = first + offset <= last
        sums[is_within] += values[first[is_within] + offset]
    # With three results the only bucket has no successor, and the reference divides zero by zero.
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = sums / (last - first + 1)[:, None]
    return found


def find_choice() -> Choice:
    """Return the fastest function that is there."""
    try:
        from ccagent.stores.metrics.largest_triangles import choose_values as compiled
    except ImportError:
        return choose_values
    return compiled


choose = find_choice()
