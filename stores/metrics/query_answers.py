"""Processing of /api/query, /api/healthcheck and /api/debug, from memory or another source."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from ccagent.errors import CcagentError, UnparsableError
from ccagent.log import logger, printable
from ccagent.stores.metrics.archive_reader import ArchiveAnswer, ArchivedValues, ArchiveRequest
from ccagent.stores.metrics.checkpoint_levels import (
    CheckpointLevel,
    collect_level,
    make_series,
    restore_level,
)
from ccagent.stores.metrics.job_queries import (
    OthersJobError,
    OwnJobs,
    check_job,
    check_queries,
    expand_job,
)
from ccagent.stores.metrics.job_table import TABLE_ERRORS, JobTableError
from ccagent.stores.metrics.query import answer, check_request
from ccagent.stores.metrics.query_request import (
    BadRequestError,
    TooLargeBodyError,
    parameter,
    parse_request,
    parse_table_request,
)
from ccagent.stores.metrics.responses import StoreResponse, begun, fail
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.table_arrow import ArrowRow, ArrowTable
from ccagent.stores.metrics.table_query import ARROW_KIND, FORMS, find_rows, table_parts
from ccagent.stores.process import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from typing import Any

    from ccagent.stores.metrics.groups import Path, StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import JobTable
    from ccagent.stores.metrics.query import QueryLimits
    from ccagent.stores.metrics.query_request import QueryRequest, TableRequest
    from ccagent.stores.metrics.table_query import TableRow


TABLES = b"version=2"
"""The query string of tables. cc-backend sends `version=v2`, which has no meaning."""

_MOST_MISSING = 5
_MOST_NODES, _MOST_METRICS = 100_000, 10_000
_CHECKS_AT_ONCE = 2000
"""Number of checked metrics before the event loop gets control again."""

_TABLES_AT_ONCE = 2
_ARROW_SECONDS = 60.0
_READS_AT_ONCE = 2
_READ_SECONDS = 30.0
_SERIES_AT_ONCE = 100
_LONGEST_GAP = 10**7
"""Maximum number of steps between the first and the last value of a series."""


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


class ValueSource(Protocol):
    """Values outside memory. Each method returns a store with the values of a request.

    The methods raise BadRequestError, CcagentError, OSError, ValueError and TimeoutError.
    """

    def is_wanted(self, start: int, end: int) -> bool:
        """Return whether a range needs this source."""
        ...

    async def read_queries(self, request: QueryRequest) -> MetricStore:
        """Return the values of a query request."""
        ...

    async def read_table(self, request: TableRequest) -> MetricStore:
        """Return the values of a version 2 request."""
        ...

    async def read_health(self, request: HealthRequest) -> MetricStore | None:
        """Return the newest values; None if they are in memory."""
        ...


class ArchiveQueries:
    """Reads archived values with the program `archive_reader`."""

    def __init__(self, store: MetricStore, directory: str, retention: int, most: int) -> None:
        """Set the parts. retention: in s. most: maximum number of values of a request."""
        self._store = store
        self._directory = directory
        self._retention = retention
        self._most = most
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)

    def is_wanted(self, start: int, end: int) -> bool:
        """Return whether a range starts before the values in memory."""
        return start < min(end, int(self._store.now()) - self._retention)

    async def read_queries(self, request: QueryRequest) -> MetricStore:
        """Return a store with the values of a request. Raise the exceptions of `_read`."""
        queries = request.queries or []
        hosts = set[str]() if request.for_all_nodes else {query.host for query in queries}
        metrics = {query.metric for query in queries} | set(request.for_all_nodes or ())
        return await self._read(request.cluster, request.start, request.end, hosts, metrics)

    async def read_table(self, request: TableRequest) -> MetricStore:
        """Return a store with the values of a version 2 request. Raise as `read_queries`."""
        hosts = request.hosts or ()
        return await self._read(request.cluster, request.start, request.end, hosts, request.metrics)

    async def read_health(self, request: HealthRequest) -> MetricStore | None:
        """Return None, because the newest values are in memory."""
        del request
        return None

    async def _read(
        self, cluster: str, start: int, end: int, hosts: Iterable[str], metrics: Iterable[str]
    ) -> MetricStore:
        """Return a store with archived values, overwritten by the values in memory.

        Raise BadRequestError, ProgramError, OSError, ValueError, TimeoutError.
        """
        most = self._most
        wanted = ArchiveRequest(cluster, start, end, sorted(hosts), sorted(metrics), most)
        text = msgspec.msgpack.encode(wanted)
        async with self._turns:
            found = await run_program(
                "archive_reader", self._directory, text=text, seconds=_READ_SECONDS
            )
            archived = msgspec.msgpack.decode(found, type=ArchiveAnswer)
            if archived.is_too_large:
                raise BadRequestError(
                    f"the archive has more than {most} values of these series; request less"
                )
            for one in archived.damaged:
                logger.error("archive %s; its values are missing", printable(one))
            return await self._combine(wanted, archived.series)

    async def _combine(
        self, request: ArchiveRequest, archived: list[ArchivedValues]
    ) -> MetricStore:
        """Merge archived values with values in memory. Yield to the event loop in between."""
        store = MetricStore(self._store.catalogue, self._store.now)
        for number, one in enumerate(archived):
            _restore(store, request.cluster, one)
            if number % _SERIES_AT_ONCE == 0:
                await asyncio.sleep(0)
        cluster = self._store.root.children.get(request.cluster)
        nodes = dict(cluster.children) if cluster is not None else {}
        metrics = frozenset(request.metrics)
        for host in request.hosts or nodes:
            if host in nodes:
                kept = collect_level(nodes[host], request.start, request.end, metrics)
                restore_level(store, (request.cluster, host), kept)
                await asyncio.sleep(0)
        return store


def _restore(store: MetricStore, cluster: str, one: ArchivedValues) -> None:
    """Add the values of an archived series. Skip series that no store can have written."""
    times, values = np.frombuffer(one.times, np.int64), np.frombuffer(one.values, np.float32)
    first = int(times.min())
    if one.frequency <= 0 or int(times.max()) - first > one.frequency * _LONGEST_GAP:
        return
    row = np.full((int(times.max()) - first) // one.frequency + 1, np.nan)
    row[(times - first) // one.frequency] = values
    level = top = CheckpointLevel()
    for name in one.levels:
        level.children[name] = CheckpointLevel()
        level = level.children[name]
    level.series[one.metric] = make_series(one.frequency, first, row)
    restore_level(store, (cluster, one.host), top)


class QueryAnswers:
    """Answers queries from memory, or from another source."""

    def __init__(
        self,
        store: MetricStore,
        limits: QueryLimits,
        jobs: JobTable | None,
        source: ValueSource | None,
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Set the parts. begin: starts a task."""
        self._store = store
        self._limits = limits
        self._jobs = jobs
        self._source = source
        self._begin = begin
        self._turns = asyncio.Semaphore(_TABLES_AT_ONCE)

    def answer_query(
        self,
        url: bytes,
        body: bytes,
        done: Callable[[StoreResponse], None],
        owner: str | None,
    ) -> None:
        """Answer /api/query. Raise BadRequestError, OthersJobError.

        owner: the only user whose jobs may be read; None: jobs of all users.
        """
        if url.endswith(b"?" + TABLES):
            if owner is not None:
                raise OthersJobError("the roles of this token do not allow tables (version=2)")
            asked = parse_table_request(body)
            self._begin(_finish(self._answer_table(asked), done))
            return
        request = parse_request(body)
        job = str(request.job) or (parameter(url, "job") or "" if b"job=" in url else "")
        own = None if owner is None else OwnJobs(owner, self._jobs)
        if own is not None:
            check_job(request, job, own)
        if job:
            if self._jobs is None:
                raise BadRequestError("this store has no table of jobs")
            request = expand_job(request, job, self._jobs, int(self._store.now()))
        if own is not None:
            check_queries(request, own, self._store)
        source = self._source
        if source is not None and source.is_wanted(request.start, request.end):
            check_request(self._store, request, self._limits)
            self._begin(_finish(self._answer_from(source, request, own), done))
        else:
            parts = answer(self._store, request, self._limits)
            done(StoreResponse(200, begun(parts)))

    def answer_health(self, body: bytes, done: Callable[[StoreResponse], None]) -> None:
        """Answer /api/healthcheck. Raise BadRequestError."""
        request = parse_health_request(body)
        if self._source is None:
            done(StoreResponse(200, check_health(self._store, request)))
        else:
            self._begin(_finish(self._answer_health(self._source, request), done))

    async def _answer_from(
        self, source: ValueSource, request: QueryRequest, own: OwnJobs | None
    ) -> StoreResponse:
        store = await source.read_queries(request)
        if own is not None:  # the source may have jobs that are not in memory
            check_queries(request, own, store)
        return StoreResponse(200, begun(answer(store, request, self._limits)))

    async def _answer_health(self, source: ValueSource, request: HealthRequest) -> StoreResponse:
        store = await source.read_health(request) or self._store
        return StoreResponse(200, check_health(store, request))

    async def _answer_table(self, request: TableRequest) -> StoreResponse:
        async with self._turns:
            store, source = self._store, self._source
            if source is not None and source.is_wanted(request.start, request.end):
                store = await source.read_table(request)
            if request.format == "arrow":
                return await self._answer_arrow(store, request)
            parts: list[bytes] = []
            for part in table_parts(store, request, self._limits):
                parts.append(part)
                await asyncio.sleep(0)  # yield to other requests
        return StoreResponse(200, b"".join(parts), FORMS[request.format].kind)

    async def _answer_arrow(self, store: MetricStore, request: TableRequest) -> StoreResponse:
        rows: list[TableRow] = []
        for some in find_rows(store, request, self._limits):
            rows += some
            await asyncio.sleep(0)
        columns = ["min", "mean", "max"] if request.over else ["value"]
        table = ArrowTable(
            ["metric"] if request.over else ["metric", "host"],
            columns,
            [
                ArrowRow(
                    row.names,
                    row.start,
                    row.step,
                    {name: one.tobytes() for name, one in row.columns.items()},
                )
                for row in rows
            ],
        )
        text = msgspec.msgpack.encode(table)
        found = await run_program("table_arrow", text=text, seconds=_ARROW_SECONDS)
        return StoreResponse(200, found, ARROW_KIND)


async def _finish(
    work: Coroutine[Any, Any, StoreResponse], done: Callable[[StoreResponse], None]
) -> None:
    """Call `done` with the result of `work`, or with an error response."""
    try:
        found = await work
    except (OthersJobError, BadRequestError, *TABLE_ERRORS) as error:
        found = explain(error)
    except (CcagentError, OSError, ValueError) as error:
        reason = str(error) or "time limit exceeded"
        logger.error("query: %s", reason)
        found = fail(503, f"the values can't be read: {reason}")
    except Exception as error:  # noqa: BLE001 - the client must get an answer
        found = explain(error)
    done(found)


def explain(error: Exception) -> StoreResponse:
    """Return the response to a request that failed. Log what is not the sender's fault."""
    match error:
        case OthersJobError():
            return fail(403, str(error))
        case BadRequestError() | UnparsableError():
            return fail(400, str(error))
        case TooLargeBodyError():
            return fail(413, str(error))
        case sqlite3.Error() | JobTableError():
            logger.error("table of jobs: %s", error)
            return fail(503, f"the table of jobs: {error}; try again")
        case _:
            logger.error("a request failed", exc_info=error)
            return fail(500, "internal error; the log of the store has details")


def describe_buffers(store: MetricStore, selector: str) -> Iterator[bytes]:
    """Yield the parts of the response in JSON: start, length and end of each buffer.

    selector: names separated by colons; empty for all. Raise BadRequestError for an unknown level.
    """
    path = selector.split(":") if selector else []
    level = store.root.find(path)
    if level is None:
        raise BadRequestError(f"not found: {selector}")
    yield b'{"data":'
    yield from _describe(level)
    yield b"}\n"


def _describe(level: StoreLevel) -> Iterator[bytes]:
    own = {metric: _buffers(series) for metric, series in level.series.items()}
    text = msgspec.json.encode(own)[:-1]
    is_first = not own
    # Nodes are yielded one by one, because a cluster has many of them.
    for name, below in list(level.children.items()):
        yield text + (b"" if is_first else b",") + msgspec.json.encode(name) + b":"
        is_first, text = False, b""
        yield from _describe(below)
    yield text + b"}"


def _buffers(series: StoredSeries) -> list[dict[str, Any]]:
    group, column = series
    first, last = group.column_bounds(column)
    found: list[dict[str, Any]] = []
    for block in group.ordered_blocks():
        length = min(last - block.first, block.rows)
        if length > 0 and first < block.first + block.rows:
            start = group.start + block.first * group.frequency
            end = start + length * group.frequency
            found.append({"start": start, "len": length, "end": end})
    return found
