"""Reading of series as in the reference: [from, to) in steps, aggregated over components."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import SeriesGroup, StoredSeries
    from ccagent.stores.metrics.line_keys import StoredMetric


class UnreadableSeriesError(CcagentError):
    """Series that can't be aggregated. The reason is part of the response."""


class SeriesValues(NamedTuple):
    """Values of one or several series. start: time of the first. end: one step after the last.

    coverage: such as `3 of 4` if some components lack values that others have, at the worst step.
    summary: number, sum, minimum and maximum, instead of values.
    """

    values: NDArray[np.float64]
    start: int
    end: int
    coverage: str = ""
    summary: NDArray[np.float64] | None = None


def read_series(series: StoredSeries, start: int, end: int) -> SeriesValues | None:
    """Return the values of one series; None if it has no value at all.

    The result's `start` is the time of the first stored value if that is later.
    """
    group, column = series
    found = _read(group, column, start, end, group.bounds())
    values = found.values
    if values.size and not np.isnan(values[0]) and not np.isnan(values[-1]):
        return found
    first, last = group.column_bounds(column)
    if first == last:
        return None
    return _read(group, column, start, end, (first, last))


def read_values(found: StoredSeries, start: int, end: int) -> tuple[int, NDArray[np.float64]]:
    """Return the time of the first value, and the values of a series in [start, end)."""
    group, column = found
    first, last = group.bounds()
    low = max(first, -((group.time(0) - start) // group.frequency))
    high = min(last, -((group.time(0) - end) // group.frequency))
    values = np.empty(max(0, high - low))
    if values.size:
        group.read(column, low, high - low, values)
    return group.time(low), values


def read_alike(
    group: SeriesGroup, columns: Sequence[int], times: tuple[int, int], *, has_values: bool
) -> list[SeriesValues | None]:
    """Return the results of read_series for series of one group.

    has_values: False for statistics instead of values.
    """
    read = partial(_read_columns, group, has_values=has_values)
    chosen = np.array(columns, np.intp)
    begin, slot, count = _slots(group, *times, group.bounds())
    is_whole = group.has_values(chosen, slot) & group.has_values(chosen, slot + count - 1)
    if not count:
        is_whole[:] = False
    found = list[SeriesValues | None](read(chosen, (begin, slot, count)))
    for number in np.flatnonzero(~is_whole).tolist():
        bounds = group.column_bounds(columns[number])
        one = chosen[number : number + 1]
        found[number] = (
            None if bounds[0] == bounds[1] else read(one, _slots(group, *times, bounds))[0]
        )
    return found


def _read_columns(
    group: SeriesGroup,
    columns: NDArray[np.intp],
    slots: tuple[int, int, int],
    *,
    has_values: bool,
) -> list[SeriesValues]:
    begin, slot, count = slots
    end, empty = begin + count * group.frequency, np.empty(0)
    if has_values:
        return [SeriesValues(one, begin, end) for one in group.read_columns(columns, slot, count)]
    summaries = group.summarize(columns, slot, count).T
    return [SeriesValues(empty, begin, end, summary=one) for one in summaries]


def read_all(
    asked: Sequence[tuple[Sequence[StoredSeries], StoredMetric]],
    times: tuple[int, int],
    *,
    is_strict: bool = False,
    has_values: bool = True,
) -> list[SeriesValues | UnreadableSeriesError | None]:
    """Return the result of `read_together` for each element.

    has_values: False if statistics are enough. Series of a group are read together.
    """
    found: list[SeriesValues | UnreadableSeriesError | None] = [None] * len(asked)
    alike: dict[int, list[int]] = {}
    for number, (series, metric) in enumerate(asked):
        if len(series) == 1:
            alike.setdefault(series[0].group.number, []).append(number)
            continue
        try:
            found[number] = read_together(series, metric, times, is_strict=is_strict)
        except UnreadableSeriesError as error:
            found[number] = error
    for numbers in alike.values():
        singles = [asked[number][0][0] for number in numbers]
        columns = [one.column for one in singles]
        read = read_alike(singles[0].group, columns, times, has_values=has_values)
        for number, one in zip(numbers, read, strict=True):
            found[number] = one
    return found


def read_together(
    found: Sequence[StoredSeries],
    metric: StoredMetric,
    times: tuple[int, int],
    *,
    is_strict: bool = False,
) -> SeriesValues | None:
    """Return series aggregated by the metric's rule; None without values.

    A component counts from its first to its last value. is_strict: components with other starts or
    ends are an error, as in the reference. Raise UnreadableSeriesError.
    """
    start, end = times
    if len(found) == 1:
        return read_series(found[0], start, end)
    quick = _read_shared(found, start, end)
    if quick is None:
        each = [one for series in found if (one := read_series(series, start, end)) is not None]
        if not each:
            return None
        count = len(each)
        try:
            summed = _add(each, metric.frequency)
        except UnreadableSeriesError:
            if is_strict:
                raise
            return _aggregate_present(each, metric, found[0].group.frequency)
    else:
        summed, count = quick, len(found)
    if count == 1:
        return summed
    if metric.aggregation is None:
        raise UnreadableSeriesError("invalid aggregation")
    if metric.aggregation == "avg":
        summed.values[:] *= 1.0 / count
    return summed


def _aggregate_present(
    each: Sequence[SeriesValues], metric: StoredMetric, frequency: int
) -> SeriesValues | None:
    """Return the values of the components that have started and not ended, at each step.

    None if no component has a value in the range.
    """
    if metric.aggregation is None:
        raise UnreadableSeriesError("invalid aggregation")
    present = [one for one in each if one.values.size]
    if not present:
        return None
    start = min(one.start for one in present)
    offsets = [round((one.start - start) / frequency) for one in present]
    length = max(o + one.values.size for o, one in zip(offsets, present, strict=True))
    total, counts = np.zeros(length), np.zeros(length)
    for offset, one in zip(offsets, present, strict=True):
        total[offset : offset + one.values.size] += one.values
        counts[offset : offset + one.values.size] += 1
    fewest = int(counts[counts > 0].min())
    total[counts == 0] = np.nan
    if metric.aggregation == "avg":
        total /= np.maximum(counts, 1)
    coverage = f"{fewest} of {len(each)}" if fewest < len(each) else ""
    return SeriesValues(total, start, start + length * frequency, coverage)


def _read(
    group: SeriesGroup, column: int, start: int, end: int, bounds: tuple[int, int]
) -> SeriesValues:
    """Return the values of a series within a range of slots."""
    begin, slot, count = _slots(group, start, end, bounds)
    values = np.empty(count)
    group.read(column, slot, count, values)
    return SeriesValues(values, begin, begin + count * group.frequency)


def _slots(
    group: SeriesGroup, start: int, end: int, bounds: tuple[int, int]
) -> tuple[int, int, int]:
    """Return time and slot of the first value within a range of slots, and the number of slots."""
    first, last = bounds
    begin = max(start, group.time(first))
    slot = group.slot(begin)
    return begin, slot, max(0, min(-((begin - end) // group.frequency), last - slot))


def _read_shared(found: Sequence[StoredSeries], start: int, end: int) -> SeriesValues | None:
    """Return the sum of series of one group; None if their starts or ends differ."""
    if not found or any(series.group is not found[0].group for series in found):
        return None
    group = found[0].group
    columns = _slice([series.column for series in found])
    if columns is None:
        return None
    begin, slot, count = _slots(group, start, end, group.bounds())
    if not count:
        return None
    summed = np.full(count, np.nan)
    for low, block in group.blocks.items():
        a, b = max(slot, low), min(slot + count, low + block.rows)
        if a >= b:
            continue
        part = block.values[a - low : b - low, columns]
        is_at_edge = (a == slot and bool(np.isnan(part[0]).any())) or (
            b == slot + count and bool(np.isnan(part[-1]).any())
        )
        if is_at_edge:
            return None
        np.add.reduce(part, axis=1, out=summed[a - slot : b - slot])
    return SeriesValues(summed, begin, begin + count * group.frequency)


def _slice(columns: list[int]) -> slice | None:
    """Return equidistant columns as a slice, else None."""
    step = columns[1] - columns[0]
    if step <= 0 or columns != list(range(columns[0], columns[-1] + 1, step)):
        return None
    return slice(columns[0], columns[-1] + 1, step)


def _add(each: Sequence[SeriesValues], frequency: int) -> SeriesValues:
    """Return the sum of series with the same start. Longer series are cut."""
    values, start, end = each[0].values.copy(), each[0].start, each[0].end
    for other in each[1:]:
        added = other.values
        if (start, end, len(values)) != (other.start, other.end, len(added)):
            if int((start - other.start) / frequency) != 0:
                raise UnreadableSeriesError(NOT_ALIGNED)
            length = len(added) - int((end - other.end) / frequency)
            if length < 1 or length > len(added) or length != len(values):
                raise UnreadableSeriesError(NOT_ALIGNED)
            added = added[:length]
            start, end = other.start, other.end
        values += added
    return SeriesValues(values, start, end)


NOT_ALIGNED = "data from lower granularities does not align"
