"""The response to /api/healthcheck: nodes with missing or outdated metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccagent.stores.metrics.query_request import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.stores.metrics.groups import Path, StoredSeries
    from ccagent.stores.metrics.store import MetricStore

_MOST_MISSING = 5
_MOST_NODES, _MOST_METRICS = 100_000, 10_000
_CHECKS_AT_ONCE = 2000
"""Number of checked metrics before the event loop gets control again."""


class HealthRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The nodes to check and their expected metrics. None is Go's encoding of an empty list."""

    cluster: str = ""
    nodes: list[str] | None = None
    metric_names: list[str] | None = msgspec.field(default=None, name="metric-names")


class NodeHealth(msgspec.Struct, frozen=True):
    """State of a node. health_metrics: JSON as a string, as in the reference."""

    state: str = msgspec.field(name="State")
    health_metrics: str = msgspec.field(name="HealthMetrics")


class _Lists(msgspec.Struct, frozen=True):
    degraded: list[str]
    missing: list[str]


def parse_health_request(body: bytes) -> HealthRequest:
    """Parse a request. Raise BadRequestError."""
    try:
        found = msgspec.json.decode(body, type=HealthRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"not a health check request: {error}") from error
    nodes, metrics = found.nodes or (), found.metric_names or ()
    if len(nodes) > _MOST_NODES or len(metrics) > _MOST_METRICS:
        raise BadRequestError(
            f"a health check names at most {_MOST_NODES} nodes and {_MOST_METRICS} metrics"
        )
    return found


def check_health(store: MetricStore, request: HealthRequest) -> Iterator[bytes]:
    """Yield the parts of the response in JSON."""
    found: dict[str, NodeHealth] = {}
    text = b"{"
    nodes = list(dict.fromkeys(request.nodes or ()))
    metrics = dict.fromkeys(request.metric_names or ())
    at_once = max(1, _CHECKS_AT_ONCE // max(1, len(metrics)))
    for begin in range(0, len(nodes), at_once):
        part = nodes[begin : begin + at_once]
        found = {node: _check_node(store, (request.cluster, node), metrics) for node in part}
        yield text + msgspec.json.encode(found)[1:-1]
        text = b","
    yield (b"" if nodes else text) + b"}\n"


def _check_node(store: MetricStore, path: Path, metrics: Mapping[str, None]) -> NodeHealth:
    level = store.root.find(path)
    if level is None:
        return NodeHealth("failed", "")
    now = int(store.now())
    is_old: dict[str, bool] = {}
    for below in level.walk():
        for metric in below.series.keys() & metrics.keys():
            is_old[metric] = is_old.get(metric, False) or _is_old(below.series[metric], now)
    lists = _Lists(
        [metric for metric in metrics if is_old.get(metric)],
        [metric for metric in metrics if metric not in is_old],
    )
    bad = len(lists.degraded) + len(lists.missing)
    state = "full"
    if bad:
        state = "failed" if bad == len(metrics) else "partial"
    return NodeHealth(state, msgspec.json.encode(lists).decode())


def _is_old(series: StoredSeries, now: int) -> bool:
    """Return whether the last value is more than five steps old."""
    group, column = series
    _, last = group.bounds()
    block = group.head
    if block is None:
        return True
    if not block.rows or np.isnan(block.values[block.rows - 1, column]):
        _, last = group.column_bounds(column)
    end = group.start + last * group.frequency
    return now - end > _MOST_MISSING * group.frequency
