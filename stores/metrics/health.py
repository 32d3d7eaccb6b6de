"""The answer to /api/healthcheck: which nodes send what they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccagent.stores.metrics.query_request import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.store import MetricStore

_MOST_MISSING = 5
_AT_ONCE = 64


class HealthRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which metrics are expected of which nodes."""

    cluster: str = ""
    nodes: list[str] = []
    metric_names: list[str] = msgspec.field(default_factory=list[str], name="metric-names")


class NodeHealth(msgspec.Struct, frozen=True):
    """How a node fares. health_metrics: JSON in a text, as the reference sends it."""

    state: str = msgspec.field(name="State")
    health_metrics: str = msgspec.field(name="HealthMetrics")


class _Lists(msgspec.Struct, frozen=True):
    degraded: list[str]
    missing: list[str]


def parse_health_request(body: bytes) -> HealthRequest:
    """Read a request. Raises BadRequestError."""
    try:
        return msgspec.json.decode(body, type=HealthRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is no health check: {error}") from None


def check_health(store: MetricStore, request: HealthRequest) -> Iterator[bytes]:
    """Yield the parts of the answer in JSON."""
    found: dict[str, NodeHealth] = {}
    text = b"{"
    nodes = list(dict.fromkeys(request.nodes))
    for begin in range(0, len(nodes), _AT_ONCE):
        part = nodes[begin : begin + _AT_ONCE]
        found = {node: _check_node(store, request, node) for node in part}
        yield text + msgspec.json.encode(found)[1:-1]
        text = b","
    yield (b"" if nodes else text) + b"}\n"


def _check_node(store: MetricStore, request: HealthRequest, node: str) -> NodeHealth:
    level = store.root.find((request.cluster, node))
    if level is None:
        return NodeHealth("failed", "")
    lists = _Lists([], [])
    now = int(store.now())
    for metric in dict.fromkeys(request.metric_names):
        series = [one for below in level.walk() if (one := below.series.get(metric)) is not None]
        if not series:
            lists.missing.append(metric)
        elif any(_is_old(one, now) for one in series):
            lists.degraded.append(metric)
    bad = len(lists.degraded) + len(lists.missing)
    state = "full"
    if bad:
        state = "failed" if bad == len(dict.fromkeys(request.metric_names)) else "partial"
    return NodeHealth(state, msgspec.json.encode(lists).decode())


def _is_old(series: StoredSeries, now: int) -> bool:
    """Return whether the last value is too old by more than five steps."""
    group, column = series
    _, last = group.bounds()
    block = group.head
    if block is None:
        return True
    if not block.rows or np.isnan(block.values[block.rows - 1, column]):
        _, last = group.column_bounds(column)
    end = group.start + last * group.frequency
    return now - end > _MOST_MISSING * group.frequency
