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
    averages = np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)
    centers = (middles + highs) / 2
    has_gap = np.isnan(averages)
    numbers = np.arange(rows.shape[0], dtype=np.intp)
    result = np.empty((rows.shape[0], wanted))
    result[:, 0], result[:, -1] = rows[:, 0], rows[:, -1]
    places = np.arange(count, dtype=np.intp)
    chosen = np.zeros(rows.shape[0], np.intp)
    low = 1
    for number, middle in enumerate(middles.tolist()):
        value = rows[numbers, chosen]
        area = (chosen - centers[number])[:, None] * (rows[:, low:middle] - value[:, None])
        area -= (chosen[:, None] - places[low:middle]) * (averages[:, number] - value)[:, None]
        np.abs(area, out=area)
        area[np.isnan(area)] = -1.0
        best = area.argmax(axis=1)
        # Without any area the reference continues from the first value of the row.
        chosen = np.where(area[numbers, best] < 0, 0, best + low)
        result[:, number + 1] = rows[numbers, chosen]
        low = middle
    result[:, 1:-1][has_gap] = np.nan
    return result


def _bounds(count: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the end of each bucket, and the last index of the next bucket."""
    size = (count - 2) / (wanted - 2)
    ends = [min(math.floor((number + 2) * size) + 1, count - 2) for number in range(wanted - 2)]
    middles = [math.floor(size) + 1, *ends[:-1]]
    return np.array(middles, np.intp), np.array(ends, np.intp)
