"""The HTTP interface: arrays and envelopes, queries, and the store's own metrics."""

from __future__ import annotations

import asyncio
import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ccagent.config.duration import parse_size
from ccagent.log import logger, printable
from ccagent.machine.own_memory import read_resident
from ccagent.net.urls import network
from ccagent.stores.budgets import sender_label
from ccagent.stores.database import DatabaseAwayError, describe_error
from ccagent.stores.jobstats.admission import (
    BodyError,
    BodyLimits,
    LoginRefusedError,
    RefusedArrayError,
    RoleRefusedError,
)
from ccagent.stores.jobstats.export import parse_export
from ccagent.stores.jobstats.job_records import RefusedEnvelopeError
from ccagent.stores.jobstats.live import find_live, parse_live
from ccagent.stores.jobstats.queries import find_job, find_top
from ccagent.stores.jobstats.query_request import QueryError, parse_job, parse_top

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator
    from typing import TypeVar

    from ccagent.stores.jobstats.admission import SenderRights, TokenRole, TokenTable
    from ccagent.stores.jobstats.ingest import StoredArray
    from ccagent.stores.jobstats.service import JobstatsService

    Q = TypeVar("Q")
    R = TypeVar("R")


_GAUGES = frozenset({"ready", "uptime_seconds", "series_cached", "body_bytes", "resident_bytes"})


_OF_SENDERS = (
    "messages", "bytes", "records", "new_series", "refused_records", "refused_arrays",
    "refused_requests",
)  # fmt: skip


def describe_numbers(numbers: dict[str, int], senders: list[dict[str, Any]]) -> bytes:
    """Return the numbers as metrics, with CPU time and memory of this process.

    senders: the dearest senders with their counters.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines: list[str] = []
    for name, value in {
        **numbers,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "resident_bytes": read_resident(),
    }.items():
        kind = "gauge" if name in _GAUGES else "counter"
        full = f"ccagent_jobstats_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# TYPE {full} {kind}", f"{full} {value}"]
    for name in _OF_SENDERS if senders else ():
        full = f"ccagent_jobstats_sender_{name}_total"
        lines.append(f"# TYPE {full} counter")
        lines += [f"{full}{{{sender_label(one['sender'])}}} {one.get(name, 0)}" for one in senders]
    return ("\n".join(lines) + "\n").encode()


_POSTED: dict[str, TokenRole] = {"lustre": "sender", "write": "sender", "job": "jobs"}
"""Paths of data, and the role that may post there."""
_MOST_REASONS = 100
"""Maximum number of refused lines in a response."""
_RETRY_AFTER = "2"
_QUERY_THREADS = 2
_MOST_EXPORTS = 2
_WARN_EVERY = 60.0
_LONGEST_EXPORT = 3600.0
_encode = msgspec.json.Encoder().encode


class JobstatsApi:
    """Handler of HTTP requests. Blocking work runs in threads."""

    def __init__(self, service: JobstatsService, tokens: TokenTable) -> None:
        self._service = service
        self._tokens = tokens
        limits = service.settings.limits
        self._bodies = BodyLimits(
            parse_size(limits.body), parse_size(limits.bodies), limits.time.seconds
        )
        self._writers = ThreadPoolExecutor(service.settings.connections, "ingest")
        self._exports = 0
        self._warned = -_WARN_EVERY
        self._readers = ThreadPoolExecutor(_QUERY_THREADS, "query")

    def application(self) -> Starlette:
        """Return the Starlette application."""
        return Starlette(
            routes=[
                Route("/top", self._guard(self._top), methods=["GET"]),
                Route("/live", self._guard(self._live), methods=["GET"]),
                Route("/job/{job:path}", self._guard(self._job), methods=["GET"]),
                Route("/export", self._guard(self._export), methods=["GET"]),
                Route("/status", self._guard(self._status), methods=["GET"]),
                Route("/metrics", self._guard(self._metrics), methods=["GET"]),
                Route("/", self._guard(self._post), methods=["POST"]),
                Route("/{kind}", self._guard(self._probe), methods=["GET", "HEAD"]),
                Route("/{kind}", self._guard(self._post), methods=["POST"]),
            ]
        )

    def close(self) -> None:
        """Wait for the work in threads."""
        self._writers.shutdown()
        self._readers.shutdown()

    async def _post(self, request: Request) -> Response:
        # The kind follows a sink's prefix: /PREFIX.lustre.
        # The specification names no path.
        kind = request.path_params.get("kind", "lustre").rpartition(".")[2]
        if kind not in _POSTED:
            reason = "post arrays to /lustre, points to /write, envelopes of jobs to /job"
            return _answer(404, {"error": reason})
        rights = self._login(request, _POSTED[kind])
        headers = request.headers
        body = await self._bodies.read(
            request.stream(),
            length=headers.get("content-length"),
            encoding=headers.get("content-encoding", "").strip().lower(),
        )
        loop = asyncio.get_running_loop()
        try:
            if kind == "job":
                count = await loop.run_in_executor(
                    self._writers, self._service.store_jobs, body, _identity(request)
                )
                return _answer(200, {"jobs": count})
            limits = rights, _identity(request, rights.server)
            if kind == "write":
                decoded = await loop.run_in_executor(
                    self._writers, self._service.store_states, body, *limits
                )
                refused = [one._asdict() for one in decoded.refused[:_MOST_REASONS]]
                counts = {"states": len(decoded.rows), "ignored": decoded.ignored}
                return _answer(200, counts | {"refused": refused})
            stored = await loop.run_in_executor(
                self._writers, self._service.store_array, body, *limits
            )
        finally:
            self._bodies.release(body)
        return self._answer_array(request, stored)

    def _answer_array(self, request: Request, stored: StoredArray) -> Response:
        """Return the response to a stored array: 429 if new series were refused."""
        numbers = stored._asdict()
        if not stored.refused:
            return _answer(200, numbers)
        first = stored.refused[0]
        logger.warning(
            "%s: refused %d of %d records: record %d: %s",
            _client(request), len(stored.refused), stored.records, first.number, first.reason,
            key="jobstats records",
        )  # fmt: skip
        numbers["refused"] = [one._asdict() for one in stored.refused]
        if not stored.refused_series:
            return _answer(200, numbers)
        # InfluxDB's words for it: ccagent's sinks set the message aside and go on.
        reason = (
            f"partial write: {stored.refused_series} records refused, {stored.stored} stored: the"
            f" sender has made {self._service.settings.limits.new_series} series of a server in"
            " this hour (limits.new-series): new series are refused"
        )
        more = {"Retry-After": str(self._service.seconds_left())}
        return _answer(429, {"error": reason, **numbers}, more)

    async def _probe(self, request: Request) -> Response:
        kind = request.path_params["kind"].rpartition(".")[2]
        if kind not in _POSTED:
            return _answer(404, {"error": "no such path: use /top, /job/ID, /status or /metrics"})
        self._login(request, _POSTED[kind])
        if request.method == "GET":
            return _answer(405, {"error": f"/{kind} accepts only POST"}, {"Allow": "POST, HEAD"})
        return _answer(200, {})

    async def _top(self, request: Request) -> Response:
        self._login(request, "reader")
        wanted = parse_top(dict(request.query_params), datetime.now(UTC))
        return _answer(200, await self._ask(find_top, wanted))

    async def _live(self, request: Request) -> Response:
        self._login(request, "reader")
        wanted = parse_live(dict(request.query_params), datetime.now(UTC))
        return _answer(200, await self._ask(find_live, wanted))

    async def _job(self, request: Request) -> Response:
        self._login(request, "reader")
        job = request.path_params["job"]
        wanted = parse_job(job, dict(request.query_params), datetime.now(UTC))
        found = await self._ask(find_job, wanted)
        if found is None:
            return _answer(404, {"error": f"no job {printable(job[:64])}"})
        return _answer(200, found)

    async def _export(self, request: Request) -> Response:
        self._login(request, "reader")
        wanted = parse_export(dict(request.query_params), datetime.now(UTC))
        if self._exports >= _MOST_EXPORTS:
            return _answer(
                503, {"error": "other exports are running"}, {"Retry-After": _RETRY_AFTER}
            )
        pieces = self._service.export(wanted)
        self._exports += 1
        try:
            # An error before the first piece still gets an error response.
            first = await asyncio.to_thread(next, pieces, b"")
        except BaseException:
            self._exports -= 1
            raise
        return StreamingResponse(self._rest(first, pieces), media_type="text/csv")

    async def _rest(self, first: bytes, pieces: Generator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of an export, within a time limit."""
        try:
            async with asyncio.timeout(_LONGEST_EXPORT):
                yield first
                while piece := await asyncio.to_thread(next, pieces, b""):
                    yield piece
        finally:
            self._exports -= 1
            await asyncio.to_thread(pieces.close)

    async def _status(self, request: Request) -> Response:
        self._login(request, "reader")
        numbers = self._service.numbers() | {"body_bytes": self._bodies.held}
        return _answer(200, {**numbers, "senders": self._service.senders.dearest()})

    async def _metrics(self, request: Request) -> Response:
        self._login(request, "reader")
        return Response(
            describe_numbers(
                self._service.numbers() | {"body_bytes": self._bodies.held},
                self._service.senders.dearest(),
            ),
            media_type="text/plain; version=0.0.4",
        )

    async def _ask(self, query: Callable[[psycopg.Connection[Any], Q], R], wanted: Q) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._service.ask, query, wanted)

    def _login(self, request: Request, role: TokenRole) -> SenderRights:
        return self._tokens.check(request.headers.get("authorization", ""), role)

    def _guard(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that converts exceptions to error responses."""

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - one request must not end the store
                if isinstance(error, LoginRefusedError | RoleRefusedError | BodyError):
                    self._service.count_refused_request(_identity(request))
                return self._explain(error, request)

        return guarded

    def _note_unavailable(self, error: DatabaseAwayError) -> None:
        """Count a request that must be repeated. Log at most once a minute.

        A change of the error does not log again: a full disk names another file each time.
        """
        self._service.count_unavailable()
        if monotonic() - self._warned >= _WARN_EVERY:
            self._warned = monotonic()
            logger.warning("%s; senders get 503 and send again", error)

    def _explain(self, error: Exception, request: Request) -> Response:
        reason = {"error": str(error)}
        match error:
            case LoginRefusedError():
                return _answer(401, reason, {"WWW-Authenticate": "Bearer"})
            case RoleRefusedError():
                return _answer(403, reason)
            case RefusedArrayError():
                self._service.count_refused(len(error.records), _identity(request))
                logger.warning(
                    "%s: refused an array: %s", _client(request), error, key="jobstats arrays"
                )
                return _answer_refused(error)
            case RefusedEnvelopeError():
                self._service.count_refused(1, _identity(request))
                logger.warning("%s: refused jobs: %s", _client(request), error, key="jobstats jobs")
                return _answer(422, reason)
            case QueryError():
                return _answer(400, reason)
            case BodyError():
                more = {"Retry-After": "1"} if error.status == 503 else {}
                # The rest of the body is not read.
                return _answer(error.status, reason, {"Connection": "close", **more})
            case DatabaseAwayError():
                self._note_unavailable(error)
                return _answer(503, reason, {"Retry-After": _RETRY_AFTER})
            case psycopg.errors.QueryCanceled():
                return _answer(503, {"error": "the query exceeded its time limit (limits.query)"})
            case psycopg.Error():
                logger.error(
                    "%s: %s", _client(request), describe_error(error), key="jobstats database"
                )
                return _answer(
                    500, {"error": "the database refused the request; the log has the reason"}
                )
            case _:
                logger.error(
                    "%s: internal error", _client(request), exc_info=error, key="jobstats internal"
                )
                return _answer(500, {"error": "internal error; the log has details"})


def _answer(status: int, content: object, headers: dict[str, str] | None = None) -> Response:
    return Response(
        _encode(content), status_code=status, headers=headers, media_type="application/json"
    )


def _answer_refused(error: RefusedArrayError) -> Response:
    """Return the response to an array of which nothing can ever be stored."""
    records = [one._asdict() for one in error.records]
    if error.is_forbidden:
        return _answer(403, {"error": error.reason, "records": records})
    # InfluxDB's words for it: ccagent's sinks make it a dead letter.
    return _answer(400, {"error": f"unable to parse: {error.reason}", "records": records})


def _identity(request: Request, sender: str | None = None) -> str:
    """Return whom a request is counted for: the server of its token, or its address."""
    return f"server {sender}" if sender is not None else f"address {network(_client(request))}"


def _client(request: Request) -> str:
    return request.client.host if request.client is not None else "a client"
