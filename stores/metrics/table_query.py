"""Answers to /api/query?version=2: several metrics of several nodes, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import orjson

from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.reading import UnreadableSeriesError, read_together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.query import QueryLimits
    from ccagent.stores.metrics.store import MetricStore


class TableRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics of nodes in a time range. hosts: None for all of the cluster.

    over: `nodes` for minimum, mean and maximum over the nodes at each step.
    """

    cluster: str
    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")
    metrics: list[str] = []
    hosts: list[str] | None = None
    over: Literal["", "nodes"] = ""
    format: Literal["json", "csv"] = "json"


class NodeValues(NamedTuple):
    """Values of one metric of a node, from `start` in steps of `step` seconds."""

    metric: str
    host: str
    start: int
    step: int
    values: NDArray[np.float64]


class TableAnswer(NamedTuple):
    """A whole answer."""

    kind: bytes
    body: bytes


def parse_table_request(body: bytes) -> TableRequest:
    """Read a request. Raises BadRequestError."""
    try:
        found = msgspec.json.decode(body, type=TableRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is no query: {error}") from None
    if not -_FAR <= found.start <= found.end <= _FAR:
        raise BadRequestError("the request is no query: from and to are no range of seconds")
    return found


_FAR = 10**11


def answer_table(store: MetricStore, request: TableRequest, limits: QueryLimits) -> TableAnswer:
    """Return the answer. Raises BadRequestError."""
    series: list[NodeValues] = []
    count = 0
    for one in find_values(store, request):
        series.append(one)
        count += len(one.values)
        if count > limits.values:
            raise BadRequestError(f"the answer would have more than {limits.values} values")
    rows = _over_nodes(request, series) if request.over else [_described(one) for one in series]
    if request.format == "csv":
        return TableAnswer(b"text/csv; charset=utf-8", _csv(rows))
    found = {"cluster": request.cluster, "from": request.start, "to": request.end, "series": rows}
    return TableAnswer(b"application/json", orjson.dumps(found, option=_NUMPY) + b"\n")


_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def find_values(store: MetricStore, request: TableRequest) -> Iterator[NodeValues]:
    """Yield the values of each metric of each node that has any."""
    cluster = store.root.children.get(request.cluster)
    if cluster is None:
        return
    hosts = list(cluster.children) if request.hosts is None else request.hosts
    for metric in request.metrics:
        known = store.catalogue.get(metric)
        if known is None:
            raise BadRequestError(f"no metric called: {metric}")
        for host in hosts:
            level = cluster.children.get(host)
            found = list(level.find_series(metric)) if level is not None else []
            if not found:
                continue
            try:
                values = read_together(found, known, request.start, request.end)
            except UnreadableSeriesError as error:
                raise BadRequestError(f"{metric} of {host}: {error}") from None
            if values is not None and len(values.values):
                yield NodeValues(
                    metric, host, values.start, found[0].group.frequency, values.values
                )


def _described(one: NodeValues) -> dict[str, Any]:
    present = one.values[~np.isnan(one.values)]
    return {
        "metric": one.metric,
        "host": one.host,
        "start": one.start,
        "step": one.step,
        "count": len(present),
        "min": present.min() if present.size else None,
        "mean": present.mean() if present.size else None,
        "max": present.max() if present.size else None,
        "values": one.values,
    }


def _over_nodes(request: TableRequest, series: list[NodeValues]) -> list[dict[str, Any]]:
    """Return minimum, mean and maximum over the nodes, step by step."""
    found: list[dict[str, Any]] = []
    for metric in dict.fromkeys(one.metric for one in series):
        each = [one for one in series if one.metric == metric]
        step = each[0].step
        offsets = [round((one.start - request.start) / step) for one in each]
        first = min(offsets)
        length = max(o + len(one.values) for o, one in zip(offsets, each, strict=True)) - first
        rows = np.full((len(each), length), np.nan)
        for row, offset, one in zip(rows, offsets, each, strict=True):
            row[offset - first : offset - first + len(one.values)] = one.values
        counts = (~np.isnan(rows)).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nansum(rows, axis=0) / counts
        found.append({
            "metric": metric,
            "nodes": len(each),
            "start": request.start + first * step,
            "step": step,
            "min": np.fmin.reduce(rows, axis=0),
            "mean": mean,
            "max": np.fmax.reduce(rows, axis=0),
        })  # fmt: skip
    return found


def _csv(rows: list[dict[str, Any]]) -> bytes:
    """Return a line for each time of each series; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    is_over = bool(rows) and "nodes" in rows[0]
    writer.writerow(
        ["time", "metric", "min", "mean", "max"] if is_over else ["time", "metric", "host", "value"]
    )
    for row in rows:
        names = ("min", "mean", "max") if is_over else ("values",)
        columns = [[None if value != value else value for value in row[name].tolist()]  # noqa: PLR0124 - NaN
                   for name in names]  # fmt: skip
        head = [row["metric"]] if is_over else [row["metric"], row["host"]]
        for number, values in enumerate(zip(*columns, strict=True)):
            writer.writerow([row["start"] + number * row["step"], *head, *values])
    return text.getvalue().encode()
