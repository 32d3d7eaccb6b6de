"""Resampling for charts: Largest-Triangle-Three-Buckets, with the reference's bounds.

Source: S. Steinarsson, Downsampling Time Series for Visual Representation, 2013. The reference
differs: the average of the next bucket includes one more value, and a missing value in the next
bucket makes the result missing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST = 1000
"""Minimum number of values for resampling."""


def resample(rows: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """Resample each row of a matrix to one value per `step` values."""
    count = rows.shape[1]
    wanted = count // step
    if wanted <= 2:
        return rows[:, [0, -1]]
    middles, highs = _bounds(count, wanted)
    pairs = np.ravel(np.column_stack([middles, highs + 1]))
    sizes = highs + 1 - middles
    sums = np.add.reduceat(rows, np.minimum(pairs, count - 1), axis=1)[:, ::2]
    # With three values the only bucket has no successor, and the reference divides zero by zero.
    averages = np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan).T.copy()
    result = np.empty((wanted, rows.shape[0]))
    result[0], result[-1] = rows[:, 0], rows[:, -1]
    _choose(rows, middles.tolist(), ((middles + highs) / 2).tolist(), averages, result)
    result[1:-1][np.isnan(averages)] = np.nan
    return result.T


def _choose(
    rows: NDArray[np.float64],
    ends: list[int],
    centers: list[float],
    averages: NDArray[np.float64],
    result: NDArray[np.float64],
) -> None:
    """Choose the value of each bucket with the largest triangle, for all rows at once.

    ends: of the buckets. centers, averages: of the next ones. result: by bucket and row.
    """
    # By time and row, and with few operations: their number decides, not the number of rows.
    values = np.ascontiguousarray(rows.T)
    times = np.arange(len(values), dtype=np.float64)[:, None]
    numbers = np.arange(rows.shape[0], dtype=np.intp)
    has_gaps = bool(np.isnan(values).any() or np.isnan(averages).any())
    chosen, value, low = np.zeros(rows.shape[0]), values[0], 1
    for number, end in enumerate(ends):
        area = values[low:end] - value
        area *= chosen - centers[number]
        area -= (chosen - times[low:end]) * (averages[number] - value)
        np.abs(area, out=area)
        if has_gaps:
            area[np.isnan(area)] = -1.0
            best = area.argmax(axis=0)
            # Without any area the reference continues from the first value of the row.
            best = np.where(area[best, numbers] < 0, 0, best + low)
        else:
            best = area.argmax(axis=0) + low
        value = result[number + 1] = values[best, numbers]
        chosen, low = best.astype(np.float64), end


def _bounds(count: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the end of each bucket, and the last index of the next bucket."""
    size = (count - 2) / (wanted - 2)
    ends = [min(math.floor((number + 2) * size) + 1, count - 2) for number in range(wanted - 2)]
    middles = [math.floor(size) + 1, *ends[:-1]]
    return np.array(middles, np.intp), np.array(ends, np.intp)
