"""The request of /api/query, and the series that each of its queries selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.levels import StoreLevel

Selector = tuple[str | tuple[str, ...], ...]


class BadRequestError(CcagentError):
    """A request that can't be answered: the message is for the client."""


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
        """Yield the selectors of the query; each has one result."""
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
        """Return the query as the reference repeats it in its answer."""
        found: dict[str, object] = {"metric": self.metric, "host": self.host}
        found |= {"resolution": self.resolution, "aggreg": self.aggreg}
        return found


class QueryRequest(msgspec.Struct, frozen=True):
    """Several queries of one cluster and time range."""

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
        """Return the queries that `for-all-nodes` adds."""
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
    """Read a request. Raises BadRequestError."""
    # Counted before they are read: a million of them takes 200 MB.
    if body.count(b"{") > _MOST_QUERIES:
        raise BadRequestError(f"the request has more than {_MOST_QUERIES} queries")
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request is no query: {error}") from error
    if not all(-_FAR <= time <= _FAR for time in (found.start, found.end)):
        raise BadRequestError("the request is no query: from or to is no time in seconds")
    return found


_FAR = 10**11
_MOST_QUERIES = 200_000
