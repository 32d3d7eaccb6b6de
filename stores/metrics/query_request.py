"""The requests of /api/query in both versions: bodies, parameters and selectors."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs

import msgspec

from ccagent.errors import CcagentError
from ccagent.stores.metrics.line_keys import LAST_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoreLevel


Selector = tuple[str | tuple[str, ...], ...]


class BadRequestError(CcagentError):
    """A request that can't be answered. The message is sent to the client."""


class SeriesQuery(msgspec.Struct, frozen=True, omit_defaults=False):
    """One query: a metric of a node or of its components."""

    metric: str = ""
    host: str = ""
    resolution: int = 0
    aggreg: bool = False
    type: str | None = None
    type_ids: list[str] | None = msgspec.field(default=None, name="type-ids")
    subtype: str | None = None
    subtype_ids: list[str] | None = msgspec.field(default=None, name="subtype-ids")
    scale_by: float | None = msgspec.field(default=None, name="scale-by")

    def selectors(self, cluster: str) -> Iterator[Selector]:
        """Yield the selectors of the query. Each selector has one result."""
        node = (cluster, self.host)
        if self.type is None:
            yield node
            return
        types = tuple(self.type + number for number in self.type_ids or ())
        parts = (
            None
            if self.subtype is None
            else tuple(self.subtype + number for number in self.subtype_ids or ())
        )
        if self.aggreg:
            yield (*node, types) if parts is None else (*node, types, parts)
            return
        for name in types:
            if parts is None:
                yield (*node, name)
            else:
                yield from ((*node, name, part) for part in parts)

    def described(self) -> dict[str, object]:
        """Return the fields of the query that the reference repeats in its response."""
        found: dict[str, object] = {"metric": self.metric, "host": self.host}
        found |= {"resolution": self.resolution, "aggreg": self.aggreg}
        return found


class QueryRequest(msgspec.Struct, frozen=True):
    """Queries for one cluster and time range."""

    cluster: str = ""
    start: int = msgspec.field(default=0, name="from")
    end: int = msgspec.field(default=0, name="to")
    with_stats: bool = msgspec.field(default=True, name="with-stats")
    with_data: bool = msgspec.field(default=True, name="with-data")
    with_padding: bool = msgspec.field(default=True, name="with-padding")
    queries: list[SeriesQuery] | None = None
    job: str | int = ""
    for_all_nodes: list[str] | None = msgspec.field(default=None, name="for-all-nodes")

    def added(self, root: StoreLevel) -> list[SeriesQuery]:
        """Return the queries added by `for-all-nodes`."""
        cluster = root.children.get(self.cluster)
        if self.for_all_nodes is None or cluster is None:
            return []
        return [
            SeriesQuery(metric=metric, host=node)
            for node in cluster.children
            for metric in self.for_all_nodes
        ]


_decoder = msgspec.json.Decoder(QueryRequest)


def parse_request(body: bytes) -> QueryRequest:
    """Parse a request. Raise BadRequestError."""
    # Count before decoding: a million queries need 200 MB.
    if body.count(b"{") > _MOST_QUERIES:
        raise BadRequestError(f"the request has more than {_MOST_QUERIES} queries")
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"not a query request: {error}") from error
    if not all(-LAST_SECOND <= time <= LAST_SECOND for time in (found.start, found.end)):
        raise BadRequestError("not a query request: from or to is not a time in seconds")
    return found


_MOST_QUERIES = 200_000
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
    if not -LAST_SECOND <= found.start <= found.end <= LAST_SECOND:
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


LONGEST_QUERY = 4096
_MOST_MEMBERS = 100
_PART = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS


class TooLargeBodyError(CcagentError):
    """A body whose inflated size exceeds the limit."""


def inflate(body: bytes | bytearray, largest: int) -> bytearray:
    """Inflate a gzip body to at most `largest` bytes. Raise BadRequestError, TooLargeBodyError.

    Works in small parts: a thread that copies a large one holds up all others.
    """
    found = bytearray()
    members, inflater = 1, zlib.decompressobj(_GZIP)
    for begin in range(0, len(body), _PART):
        rest = bytes(body[begin : begin + _PART])
        while rest:
            if inflater.eof:
                members, inflater = members + 1, zlib.decompressobj(_GZIP)
            if members > _MOST_MEMBERS:
                raise BadRequestError(f"the gzip body has more than {_MOST_MEMBERS} members")
            try:
                found += inflater.decompress(rest, _PART)
            except zlib.error as error:
                raise BadRequestError(f"the body is not valid gzip: {error}") from error
            if len(found) > largest:
                raise TooLargeBodyError(f"the body has more than {largest} bytes")
            rest = inflater.unconsumed_tail or inflater.unused_data
    if body and not inflater.eof:
        raise BadRequestError("the body is not valid gzip: it is incomplete")
    return found


def parameter(url: bytes, name: str) -> str | None:
    """Return a parameter of a URL; None if it is missing. Raise BadRequestError."""
    query = url.partition(b"?")[2][:LONGEST_QUERY].decode("ascii", "replace")
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=100).get(name)
    except ValueError as error:
        raise BadRequestError("the URL has too many parameters") from error
    return found[0] if found else None
