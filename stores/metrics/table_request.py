"""The request of /api/query?version=2."""

from __future__ import annotations

from typing import Literal

import msgspec

from ccagent.stores.metrics.query_request import BadRequestError

_FAR = 10**11
_MOST_METRICS = 10_000
_MOST_HOSTS = 100_000
_MOST_SERIES = 2_000_000
"""Maximum number of series of a request: all metrics of 10,000 nodes."""


class TableRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics of nodes in a time range. hosts: None for all nodes of the cluster.

    over: `nodes` for minimum, mean and maximum over the nodes at each step.
    """

    cluster: str
    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")
    metrics: list[str] = []
    hosts: list[str] | None = None
    over: Literal["", "nodes"] = ""
    format: Literal["json", "csv", "arrow"] = "json"


def parse_table_request(body: bytes) -> TableRequest:
    """Parse a request. Raise BadRequestError."""
    try:
        found = msgspec.json.decode(body, type=TableRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"not a query request: {error}") from error
    if not -_FAR <= found.start <= found.end <= _FAR:
        raise BadRequestError("not a query request: from and to are not a range in seconds")
    for count, most, name in (
        (len(found.metrics), _MOST_METRICS, "metrics"),
        (len(found.hosts or ()), _MOST_HOSTS, "hosts"),
        (len(found.metrics) * len(found.hosts or ()), _MOST_SERIES, "series"),
    ):
        if count > most:
            raise BadRequestError(f"the request names {count} {name}; at most {most} at once")
    return found


def check_series(nodes: int, metrics: int) -> None:
    """Raise BadRequestError if the metrics of all nodes are too many series."""
    if nodes * metrics > _MOST_SERIES:
        raise BadRequestError(
            f"{metrics} metrics of {nodes} nodes are more than {_MOST_SERIES} series; request less"
        )
