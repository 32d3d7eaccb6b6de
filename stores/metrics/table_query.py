"""Responses to /api/query?version=2: metrics of several nodes, as JSON, CSV or Arrow."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from ccagent.stores.metrics.query_request import BadRequestError, check_series
from ccagent.stores.metrics.reading import UnreadableSeriesError, read_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.line_keys import StoredMetric
    from ccagent.stores.metrics.query import QueryLimits
    from ccagent.stores.metrics.query_request import TableRequest
    from ccagent.stores.metrics.store import MetricStore


class TableRow(NamedTuple):
    """A series of a response. names: labels. start, step: s. columns: values."""

    names: dict[str, str]
    start: int
    step: int
    statistics: dict[str, Any]
    columns: dict[str, NDArray[np.float64]]


class TableForm(NamedTuple):
    """The format of a response. row: encodes a row; its second argument is true for the first."""

    kind: bytes
    begin: Callable[[TableRequest], bytes]
    row: Callable[[TableRow, bool], bytes]
    end: bytes


def _begin_json(request: TableRequest) -> bytes:
    found = {"cluster": request.cluster, "from": request.start, "to": request.end}
    return orjson.dumps(found)[:-1] + b',"series":['


def _json_row(row: TableRow, is_first: bool) -> bytes:
    columns = {"values" if name == "value" else name: one for name, one in row.columns.items()}
    found = row.names | {"start": row.start, "step": row.step} | row.statistics | columns
    return (b"" if is_first else b",") + orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)


def _begin_csv(request: TableRequest) -> bytes:
    return b"time,metric,min,mean,max\n" if request.over else b"time,metric,host,value\n"


def _csv_row(row: TableRow, is_first: bool) -> bytes:
    """Return a line for each time. Missing values are empty."""
    del is_first
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [
        [None if value != value else value for value in one.tolist()]  # noqa: PLR0124 - NaN
        for one in row.columns.values()
    ]
    for number, values in enumerate(zip(*columns, strict=True)):
        writer.writerow([row.start + number * row.step, *row.names.values(), *values])
    return text.getvalue().encode()


FORMS = {
    "json": TableForm(b"application/json", _begin_json, _json_row, b"]}\n"),
    "csv": TableForm(b"text/csv; charset=utf-8", _begin_csv, _csv_row, b""),
}
"""The separate program `table_arrow` writes Arrow."""

ARROW_KIND = b"application/vnd.apache.arrow.stream"
_AT_ONCE = 128
"""Number of series before the event loop gets control again."""


class NodeValues(NamedTuple):
    """Values of one metric of a node, from `start` in steps of `step` seconds."""

    metric: str
    host: str
    start: int
    step: int
    values: NDArray[np.float64]
    coverage: str = ""
    error: str = ""


def table_parts(store: MetricStore, request: TableRequest, limits: QueryLimits) -> Iterator[bytes]:
    """Yield the parts of a response in JSON or CSV, with pauses.

    Raise BadRequestError, possibly after some parts.
    """
    form = FORMS[request.format]
    is_first = True
    yield form.begin(request)
    for rows in find_rows(store, request, limits):
        for row in rows:
            yield form.row(row, is_first)
            is_first = False
        yield b""
    yield form.end


def find_rows(
    store: MetricStore, request: TableRequest, limits: QueryLimits
) -> Iterator[list[TableRow]]:
    """Yield lists of rows, possibly empty. Raise BadRequestError."""
    check_series(len(_hosts(store, request)), len(request.metrics))
    count = 0
    for metric in dict.fromkeys(request.metrics):
        each: list[NodeValues] = []
        for found in _find(store, request, metric, limits):
            each += found
            count += sum(len(one.values) for one in found)
            limits.check(count)
            if request.over:
                yield []
            else:
                yield [_row(one) for one in found]
        if request.over and each:
            yield [_row_over_nodes(request, each)]


def _hosts(store: MetricStore, request: TableRequest) -> list[str]:
    cluster = store.root.children.get(request.cluster)
    if cluster is None:
        return []
    if request.hosts is None:
        return list(cluster.children)
    return [host for host in dict.fromkeys(request.hosts) if host in cluster.children]


def _find(
    store: MetricStore, request: TableRequest, metric: str, limits: QueryLimits
) -> Iterator[list[NodeValues]]:
    """Yield the values of a metric, for some nodes at a time."""
    known = store.catalogue.get(metric)
    cluster = store.root.children.get(request.cluster)
    if known is None:
        raise BadRequestError(f"no metric called: {metric}")
    if cluster is None:
        return
    hosts = _hosts(store, request)
    for begin in range(0, len(hosts), _AT_ONCE):
        each: list[NodeValues] = []
        for host in hosts[begin : begin + _AT_ONCE]:
            level = cluster.children.get(host)
            found = list(level.find_series(metric)) if level is not None else []
            if found:
                _check_length(request, found, limits)
                one = _read(request, (metric, host), found, known, limits.is_strict)
                each += [one] if one is not None and not (one.error and request.over) else []
        yield each


def _check_length(
    request: TableRequest, found: Sequence[StoredSeries], limits: QueryLimits
) -> None:
    """Raise BadRequestError if reading these series would need too much memory."""
    span = request.end - request.start
    for group in {series.group.number: series.group for series in found}.values():
        first, last = group.bounds()
        limits.check(min(last - first, span // group.frequency))


def _read(
    request: TableRequest,
    name: tuple[str, str],
    found: list[StoredSeries],
    known: StoredMetric,
    is_strict: bool,
) -> NodeValues | None:
    step = found[0].group.frequency
    try:
        values = read_together(found, known, (request.start, request.end), is_strict=is_strict)
    except UnreadableSeriesError as error:
        return NodeValues(*name, request.start, step, np.empty(0), error=str(error))
    if values is None or not len(values.values):
        return None
    return NodeValues(*name, values.start, step, values.values, values.coverage)


def _row(one: NodeValues) -> TableRow:
    names = {"metric": one.metric, "host": one.host}
    if one.error:
        return TableRow(names, one.start, one.step, {"error": one.error}, {"value": one.values})
    present = one.values[~np.isnan(one.values)]
    statistics: dict[str, Any] = {"count": len(present)}
    for name, function in (("min", np.min), ("mean", np.mean), ("max", np.max)):
        statistics[name] = float(function(present)) if present.size else None
    if one.coverage:
        statistics["coverage"] = one.coverage
    return TableRow(names, one.start, one.step, statistics, {"value": one.values})


def _row_over_nodes(request: TableRequest, each: list[NodeValues]) -> TableRow:
    """Return minimum, mean and maximum of a metric over the nodes, for each step."""
    step = each[0].step
    offsets = [round((one.start - request.start) / step) for one in each]
    first = min(offsets)
    length = max(o + len(one.values) for o, one in zip(offsets, each, strict=True)) - first
    least, most = np.full(length, np.nan), np.full(length, np.nan)
    total, counts = np.zeros(length), np.zeros(length)
    for offset, one in zip(offsets, each, strict=True):
        place = slice(offset - first, offset - first + len(one.values))
        is_present = ~np.isnan(one.values)
        least[place] = np.fmin(least[place], one.values)
        most[place] = np.fmax(most[place], one.values)
        total[place] += np.where(is_present, one.values, 0.0)
        counts[place] += is_present
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / counts
    return TableRow(
        {"metric": each[0].metric},
        request.start + first * step,
        step,
        {"nodes": len(each)},
        {"min": least, "mean": mean, "max": most},
    )
