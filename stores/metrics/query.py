"""Responses to /api/query in the reference's format, and resampling by largest triangles.

Source: S. Steinarsson, Downsampling Time Series for Visual Representation, 2013. The reference
differs: the average of the next bucket includes one more value, and a missing value in the next
bucket makes the result missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from ccagent.stores.metrics.blocks import summarize
from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.reading import (
    SeriesValues,
    UnreadableSeriesError,
    read_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.line_keys import StoredMetric
    from ccagent.stores.metrics.query_request import QueryRequest, SeriesQuery
    from ccagent.stores.metrics.store import MetricStore

    Choice = Callable[[list[NDArray[np.float64]], NDArray[np.float64]], None]
    """A function such as choose_values."""

_AT_ONCE = 256
"""Number of queries before the event loop gets control again."""

_MOST_COMPONENTS = 10_000

_EXACT = 1e12
"""Larger numbers have no third decimal to round."""

_LONG = 10_000
"""Number of steps from which on the length of the stored series is checked."""

_MOST_QUERIES = 2_000_000
"""Maximum queries added by `for-all-nodes`: all metrics of 10,000 nodes."""

_FEWEST = 1000
"""Minimum number of values for resampling."""


class _Asked(NamedTuple):
    """Series of one object of the response, which is still empty."""

    answer: dict[str, Any]
    series: list[StoredSeries]
    metric: StoredMetric
    query: SeriesQuery


class _Result(NamedTuple):
    """One object of the response. Its values are filled in together with similar results."""

    answer: dict[str, Any]
    found: SeriesValues
    query: SeriesQuery
    frequency: int


class QueryLimits(NamedTuple):
    """values: maximum number of values of a response. fewest: minimum for resampling.

    is_strict: components that start or end apart are errors, as in the reference.
    """

    values: int = 50_000_000
    fewest: int = _FEWEST
    is_strict: bool = False

    def check(self, count: int) -> None:
        """Raise BadRequestError for a response with too many values."""
        if count > self.values:
            raise BadRequestError(
                f"the response would exceed {self.values} values; request less at once"
            )


def answer(store: MetricStore, request: QueryRequest, limits: QueryLimits) -> Iterator[bytes]:
    """Yield the parts of a response in JSON. Raise BadRequestError before the first part."""
    added = check_request(store, request, limits)
    queries = [*(request.queries or ()), *added]
    text = b"{"
    if added:
        text += b'"queries":' + orjson.dumps([query.described() for query in added]) + b","
    text += b'"results":['
    for begin in range(0, len(queries), _AT_ONCE):
        part = _answer_some(store, request, queries[begin : begin + _AT_ONCE], limits)
        yield text + part[1:-1]
        text = b","
    yield (b"" if queries else text) + b"]}\n"


def check_request(
    store: MetricStore, request: QueryRequest, limits: QueryLimits
) -> list[SeriesQuery]:
    """Return the queries added by `for-all-nodes`.

    Raise BadRequestError if the response would be too large.
    """
    _check_nodes(store, request)
    added = request.added(store.root)
    _check_size(store, request, [*(request.queries or ()), *added], limits)
    return added


def _check_nodes(store: MetricStore, request: QueryRequest) -> None:
    """Raise BadRequestError if `for-all-nodes` would add too many queries."""
    cluster = store.root.children.get(request.cluster)
    nodes = 0 if cluster is None else len(cluster.children)
    if nodes * len(request.for_all_nodes or ()) > _MOST_QUERIES:
        raise BadRequestError(
            f"for-all-nodes would add more than {_MOST_QUERIES} queries; request fewer metrics"
        )


def _longest(store: MetricStore) -> int:
    """Return the maximum number of steps of all series."""
    bounds = (group.bounds() for group in store.groups.values())
    return max((last - first for first, last in bounds), default=0)


def _check_size(
    store: MetricStore, request: QueryRequest, queries: list[SeriesQuery], limits: QueryLimits
) -> None:
    """Raise BadRequestError if the response would be too large."""
    span = max(0, request.end - request.start)
    total, longest = 0, None
    for query in queries:
        metric = store.catalogue.get(query.metric)
        types = 1 if query.type is None else len(query.type_ids or ())
        types *= max(1, len(query.subtype_ids or ()))
        if types > _MOST_COMPONENTS:
            raise BadRequestError(f"a query has at most {_MOST_COMPONENTS} components")
        steps = 0
        if metric is not None:
            steps = span // metric.frequency + 1
            if steps > _LONG and not (request.with_padding and request.with_data):
                longest = _longest(store) if longest is None else longest
                steps = min(steps, longest)
            total += steps if query.aggreg else types * steps
        limits.check(max(total, types * steps))


def _answer_some(
    store: MetricStore, request: QueryRequest, queries: list[SeriesQuery], limits: QueryLimits
) -> bytes:
    results: list[list[dict[str, Any]]] = []
    asked: list[_Asked] = []
    for query in queries:
        objects: list[dict[str, Any]] = []
        results.append(objects)
        for one in _find(store, request, query):
            objects.append(one if isinstance(one, dict) else one.answer)
            if not isinstance(one, dict):
                asked.append(one)
    values = read_all(
        [(one.series, one.metric) for one in asked],
        (request.start, request.end),
        is_strict=limits.is_strict,
        has_values=request.with_data or any(query.resolution for query in queries),
    )
    alike: dict[tuple[int, int, bool], list[_Result]] = {}
    for one, found in zip(asked, values, strict=True):
        if found is None:
            continue
        frequency, resolution = one.series[0].group.frequency, one.query.resolution
        if isinstance(found, UnreadableSeriesError):
            one.answer.update(_failed(str(found)))
        elif resolution > frequency and resolution % frequency:
            reason = f"resolution {resolution} is no multiple of the time step {frequency}"
            one.answer.update(_failed(reason))
        else:
            result = _Result(one.answer, found, one.query, frequency)
            step = _step(result, limits)
            alike.setdefault((len(found.values), step, found.summary is None), []).append(result)
    for (_, step, _), some in alike.items():
        _fill(request, some, step)
    # Series without values leave no object.
    filled = [[one for one in objects if one] for objects in results]
    return orjson.dumps(filled, option=orjson.OPT_SERIALIZE_NUMPY)


def _find(
    store: MetricStore, request: QueryRequest, query: SeriesQuery
) -> Iterator[_Asked | dict[str, Any]]:
    """Yield the series, or an error object, for each selector."""
    metric = store.catalogue.get(query.metric)
    if metric is None:
        reason = f"no metric called: {query.metric!r}"
    elif request.start > request.end:
        reason = "invalid time range"
    else:
        reason = ""
    for selector in query.selectors(request.cluster):
        if reason or metric is None:
            yield _failed(reason)
            continue
        series = [
            one for level in store.root.select(selector) for one in level.find_series(query.metric)
        ]
        if series:
            yield _Asked({}, series, metric, query)


def _failed(reason: str) -> dict[str, Any]:
    return {"error": reason, "from": 0, "to": 0, "resolution": 0, "avg": 0, "min": 0, "max": 0}


def _step(one: _Result, limits: QueryLimits) -> int:
    """Return the number of values per resampled value; 0 without resampling."""
    step = one.query.resolution // one.frequency
    count = len(one.found.values)
    if step < 2 or count < limits.fewest or not count // step:
        return 0
    return step


def _fill(request: QueryRequest, found: list[_Result], step: int) -> None:
    """Fill in the objects of results with the same number of values."""
    each = [one.found.values for one in found]
    rows = resample(each, step) if step else np.array(each)
    statistics = _statistics(found, rows) if request.with_stats else None
    scales = [one.query.scale_by or 1.0 for one in found]
    if any(scale != 1.0 for scale in scales):
        factors = np.array(scales)
        rows = rows * factors[:, None]
        if statistics is not None:
            statistics = statistics * factors
    texts = rounded(statistics, 100.0).T.tolist() if statistics is not None else None
    data = rounded(rows, 1000.0) if request.with_data else None
    for number, one in enumerate(found):
        answer, (_, start, end, coverage, _) = one.answer, one.found
        if data is not None:
            values = data[number]
            if request.with_padding:
                # Unlike the reference, not beyond the range: that may be millions of steps.
                missing = min(start, request.end) // one.frequency - request.start // one.frequency
                if missing > 0:
                    values = np.concatenate([np.full(missing, np.nan), values])
            if values.size:
                answer["data"] = values
        answer["from"], answer["to"] = start, end
        answer["resolution"] = one.query.resolution if step else one.frequency
        if coverage:
            answer["coverage"] = coverage
        answer["avg"], answer["min"], answer["max"] = texts[number] if texts else (0, 0, 0)


def _statistics(found: list[_Result], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return average, minimum and maximum of each row, without missing values. Shape: (3, rows)."""
    known = [one.found.summary for one in found if one.found.summary is not None]
    counts, totals, *extremes = np.column_stack(known) if known else summarize(rows)
    with np.errstate(invalid="ignore"):
        return np.stack([totals / counts, *extremes])


def rounded(values: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Round values to 1/factor."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = values * factor
        np.rint(found, out=found)
        found /= factor
    if values.size and np.fmax.reduce(np.abs(values), axis=None) >= _EXACT:
        found = np.where(np.abs(values) < _EXACT, found, values)
    return found


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
