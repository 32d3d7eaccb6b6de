"""The request of /api/query, and the selectors of its queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.levels import StoreLevel

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
    if not all(-_FAR <= time <= _FAR for time in (found.start, found.end)):
        raise BadRequestError("not a query request: from or to is not a time in seconds")
    return found


_FAR = 10**11
_MOST_QUERIES = 200_000
