"""The HTTP endpoints of the metric store: routes, rights, and the action of each request."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.stores.metrics.general import LineMessage
from ccagent.stores.metrics.ingest import PIECE
from ccagent.stores.metrics.job_events import JobEnvelope
from ccagent.stores.metrics.job_queries import describe_jobs, may_read
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.query_answers import TABLES, QueryAnswers, describe_buffers, explain
from ccagent.stores.metrics.query_request import (
    LONGEST_QUERY,
    TooLargeBodyError,
    inflate,
    parameter,
)
from ccagent.stores.metrics.responses import (
    OK,
    StoreResponse,
    begun,
    complain,
    fail,
    retry_after,
    text,
)
from ccagent.stores.metrics.tokens import ADMIN, READ, WRITE, UnauthorizedError
from ccagent.stores.metrics.usage.keeper import parse_usage_query

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.job_events import JobEvents
    from ccagent.stores.metrics.job_table import JobTable
    from ccagent.stores.metrics.log_writer import StoreLogError, WriteAheadLog
    from ccagent.stores.metrics.query_answers import ValueSource
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.tokens import TokenVerifier
    from ccagent.stores.metrics.usage.keeper import UsageKeeper
    from ccagent.stores.metrics.usage.table import UsageQuery

_MOST_REMEMBERED = 1000
_MOST_SELECTORS = 100_000
_MOST_DIGITS = 11
_LARGEST_QUESTION = 16 << 20
"""Maximum size in bytes of a request body other than a write."""

_BODIES = 1 << 30
_SMALL_GZIP = 4 << 10
"""Maximum size in bytes of a body that is inflated at once: up to 4 MB in some ms."""

_selectors: msgspec.json.Decoder[list[list[str]] | None] = msgspec.json.Decoder(
    list[list[str]] | None
)


class ServerPath(NamedTuple):
    """The requirements of a path. method: the only allowed HTTP method.

    owner: the only user whose jobs a request may read. None: jobs of all users. Empty: no jobs;
    used until the token is checked. sender: identity of the client.
    """

    name: str
    method: bytes
    rights: int
    owner: str | None = ""
    sender: str = ""


ROUTES = {
    b"/api/write": ServerPath("write", b"POST", WRITE),
    b"/api/query": ServerPath("query", b"GET", READ),
    b"/api/free": ServerPath("free", b"POST", ADMIN),
    b"/api/debug": ServerPath("debug", b"GET", ADMIN),
    b"/api/healthcheck": ServerPath("healthcheck", b"GET", READ),
    b"/api/jobs": ServerPath("jobs", b"POST", WRITE),
    b"/api/job": ServerPath("job", b"GET", READ),
    b"/api/usage": ServerPath("usage", b"GET", READ),
    b"/metrics": ServerPath("metrics", b"GET", READ),
}


class StoreApi:
    """Handler of HTTP requests, independent of connections."""

    def __init__(
        self,
        store: MetricStore,
        ingest: LineIngest,
        commit: MessageCommit,
        *,
        log: WriteAheadLog | None = None,
        verifier: TokenVerifier | None = None,
        limits: QueryLimits | None = None,
        largest_body: int = 64 << 20,
        bodies: int = _BODIES,
        describe: Callable[[], bytes] = bytes,
        jobs: JobTable | None = None,
        events: JobEvents | None = None,
        source: ValueSource | None = None,
        usage: UsageKeeper | None = None,
    ) -> None:
        """Set the parts. bodies: limit of inflated bytes. source: values outside memory."""
        self.largest_body = largest_body
        self._bodies = bodies
        self._held = 0
        """Size in bytes of the large inflated bodies that are being written."""
        self._store = store
        self._ingest = ingest
        self._commit = commit
        self._log = log
        self._verifier = verifier
        self._answers = QueryAnswers(store, limits or QueryLimits(), jobs, source, self._begin)
        self._describe = describe
        self._jobs = jobs
        self._events = events
        self._usage = usage
        self._tasks: set[asyncio.Task[None]] = set()
        self._clusters: dict[bytes, str] = {b"": ""}

    def route(self, method: bytes, path: bytes) -> ServerPath | StoreResponse:
        """Return the route of a request, or an error response for an unknown path or method."""
        path, _, query = path.partition(b"?")
        if len(path) > 1 and path.endswith(b"/"):
            path = path[:-1]
        found = ROUTES.get(path)
        if found is None:
            return text(404, "404 page not found")
        if found.name == "query" and method == b"POST" and query == TABLES:
            return found
        if found.method != method:
            return StoreResponse(405, b"", more=b"Allow: %b\r\n" % found.method)
        return found

    def authorize(self, route: ServerPath, authorization: bytes) -> StoreResponse | None:
        """Return an error response if the token does not permit the route, else None."""
        if self._verifier is None:
            return None
        try:
            rights = self._verifier.rights(authorization)
        except UnauthorizedError as error:
            return text(401, str(error), b"WWW-Authenticate: Bearer\r\n")
        if rights & route.rights != route.rights:
            return fail(403, f"the roles of this token do not allow {route.name}")
        return None

    def restrict(self, route: ServerPath, authorization: bytes, address: str = "") -> ServerPath:
        """Return the route with owner and sender of an authorized request."""
        sender = f"address {address}" if address else ""
        if self._verifier is None:
            return route._replace(sender=sender)
        subject = self._verifier.subject(authorization)
        return route._replace(
            owner=self._verifier.owner(authorization),
            sender=f"token {subject}" if subject else sender,
        )

    def count_refused(self, address: str) -> None:
        """Count a refused request of an address."""
        if address:
            self._ingest.senders.count(f"address {address}", refused_requests=1)

    def respond(
        self,
        route: ServerPath,
        url: bytes,
        body: bytes | bytearray,
        is_gzip: bool,
        done: Callable[[StoreResponse], None],
    ) -> None:
        """Process a request. Call `done` with the response, immediately or later."""
        try:
            if route.name == "write":
                self._write(route, url, body, is_gzip, done)
            else:
                if len(body) > _LARGEST_QUESTION:
                    raise TooLargeBodyError(f"the body has more than {_LARGEST_QUESTION} bytes")
                if is_gzip:
                    body = inflate(body, _LARGEST_QUESTION)
                self._respond_otherwise(route, url, bytes(body), done)
        except (CcagentError, sqlite3.Error) as error:
            done(explain(error))

    def _respond_otherwise(
        self, route: ServerPath, url: bytes, body: bytes, done: Callable[[StoreResponse], None]
    ) -> None:
        """Process a request other than a write. Raise the exceptions of its handler."""
        name = route.name
        if name == "jobs" and self._events is not None:
            self._begin(self._store_jobs(self._events, body, route.sender, done))
            return
        owner = None if self._verifier is None else route.owner
        if name == "usage" and self._usage is not None:
            query = parse_usage_query(url, int(self._store.now()), owner)
            self._begin(self._answer_usage(self._usage, query, done))
        elif name == "query":
            self._answers.answer_query(url, body, done, owner)
        elif name == "healthcheck":
            self._answers.answer_health(body, done)
        else:
            done(self._answer(name, url, body, owner))

    def _answer(self, name: str, url: bytes, body: bytes, owner: str | None) -> StoreResponse:
        if name == "debug":
            selector = parameter(url, "selector") or ""
            return StoreResponse(200, begun(describe_buffers(self._store, selector)))
        if name == "job" and self._jobs is not None:
            found = self._jobs.find(parameter(url, "cluster") or "", parameter(url, "job") or "")
            seen = [job for job in found if may_read(owner, job.user)]
            parts = self._store if parameter(url, "parts") else None
            return StoreResponse(200, describe_jobs(seen, parts, self._usage))
        if name == "usage":
            return fail(501, "usage: this store has no table of usage; the engine memory has one")
        if name in {"job", "jobs"}:
            return fail(501, f"{name}: this store has no table of jobs")
        if name == "free":
            return self._free(url, body)
        return StoreResponse(200, self._describe(), b"text/plain; version=0.0.4; charset=utf-8")

    def _write(
        self,
        route: ServerPath,
        url: bytes,
        body: bytes | bytearray,
        is_gzip: bool,
        done: Callable[[StoreResponse], None],
    ) -> None:
        cluster = self._cluster(url)
        if is_gzip and len(body) <= _SMALL_GZIP:
            body, is_gzip = inflate(body, self.largest_body), False
        message = None
        if not is_gzip and len(body) <= PIECE:
            message = self._ingest.write_known(bytes(body), cluster, route.sender)
        if message is not None:
            self._commit_message(message, done)
            return
        message = LineMessage(cluster, route.sender)
        self._begin(self._write_slowly(body, is_gzip, message, done))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _answer_usage(
        usage: UsageKeeper, query: UsageQuery, done: Callable[[StoreResponse], None]
    ) -> None:
        """Answer in a thread: the sums of a year take seconds."""
        try:
            found = await asyncio.to_thread(usage.answer, query)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            logger.error("usage: %s", error)
            done(fail(503, f"the table of usage: {error}; try again"))
        else:
            done(StoreResponse(200, msgspec.json.encode(found) + b"\n"))

    async def _store_jobs(
        self,
        events: JobEvents,
        body: bytes,
        sender: str,
        done: Callable[[StoreResponse], None],
    ) -> None:
        """Write an envelope of jobs in pieces."""
        envelope = JobEnvelope(sender)
        try:
            await self._ingest.take_turns(events.take_pieces(body, envelope), sender)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            done(explain(error))
        else:
            refusal = envelope.refusal
            if refusal is None:
                done(text(200, f"jobs: {envelope.jobs}"))
            else:
                self._ingest.senders.count(sender, refused_requests=1)
                found = fail(refusal.status, f"partial write: {refusal.reason}")
                done(found._replace(more=retry_after(refusal.seconds)))

    async def _write_slowly(
        self,
        body: bytes | bytearray,
        is_gzip: bool,
        message: LineMessage,
        done: Callable[[StoreResponse], None],
    ) -> None:
        """Write a body in pieces. Other requests are processed between pieces."""
        held = 0
        try:
            if is_gzip:
                body = await asyncio.to_thread(inflate, body, self.largest_body)
            if self._held + len(body) > self._bodies:
                done(fail(503, "too many large bodies at once; try again"))
                return
            held = len(body)
            self._held += held
            await self._ingest.write_in_turns(body, message)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            done(explain(error))
        else:
            self._commit_message(message, done)
        finally:
            self._held -= held

    def _commit_message(self, message: LineMessage, done: Callable[[StoreResponse], None]) -> None:
        """Send the response after the values of the message are in the log."""

        def committed(problem: StoreLogError | None) -> None:
            if problem is not None:
                done(fail(503, f"the values are not stored: {problem}; send them again"))
            elif message.unkept:
                done(fail(503, f"events are not stored: {message.unkept}; send them again"))
            elif message.bad_count:
                done(complain(message))
            else:
                done(OK)

        self._commit.wait(committed)

    def _cluster(self, url: bytes) -> str:
        """Return the default cluster from the parameters of a URL."""
        query = url.partition(b"?")[2]
        found = self._clusters.get(query)
        if found is None:
            found = parameter(url, "cluster") or ""
            if len(self._clusters) >= _MOST_REMEMBERED:
                self._clusters = {b"": ""}
            if len(query) <= LONGEST_QUERY:
                self._clusters[query] = found
        return found

    def _free(self, url: bytes, body: bytes) -> StoreResponse:
        until = parameter(url, "to")
        if not until:
            return fail(400, "'to' is a required query parameter")
        digits = until.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            return fail(500, f"to={until[:40]}: expected seconds since 1970")
        if len(digits) > _MOST_DIGITS:
            return fail(
                400, f"to={until[:40]}: expected seconds since 1970; the number is too large"
            )
        time = int(until)
        # Decoded lists need thirty times the memory of a body with empty lists.
        if body.count(b"[") > _MOST_SELECTORS:
            return text(400, f"there are more than {_MOST_SELECTORS} selectors")
        try:
            selectors = _selectors.decode(body) or []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return text(400, f"expected a list of lists of names: {error}")
        if not all(selectors):
            return text(400, "a selector names a cluster at least")
        freed = sum(self._store.free(selector, time) for selector in selectors)
        logger.info("freed %d buffers before %d on request", freed, time)
        if self._log is not None and freed:
            self._log.add_freed(selectors, time)
            self._commit.flush()
        return text(200, f"buffers freed: {freed}")
