"""Serving over HTTP: the base class of the store's and the gateway's process, and a connection.

The requests of a connection are answered in order.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import time
from collections import deque
from typing import TYPE_CHECKING

from ccagent.config.duration import parse_size
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, say
from ccagent.net.urls import describe_address, network
from ccagent.service.instance import Notifier
from ccagent.stores.metrics.checking import make_tls_context
from ccagent.stores.metrics.job_table import open_job_table
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.request_reader import ConnectionLimits, RequestReader
from ccagent.stores.metrics.responses import StoreResponse, fail, head
from ccagent.stores.metrics.series_limits import SeriesLimits, plan_memory
from ccagent.stores.metrics.settings import split_address
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.stores.process import handle_accept_errors, plan_connections, shorten_collections

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from typing import Any

    from ccagent.stores.metrics.api import StoreApi
    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.job_events import JobEvents
    from ccagent.stores.metrics.job_queries import FootprintKeeper
    from ccagent.stores.metrics.job_table import JobTable
    from ccagent.stores.metrics.nats_receiver import NatsReceiver
    from ccagent.stores.metrics.request_reader import StoreRequest
    from ccagent.stores.metrics.settings import StoreSettings
    from ccagent.stores.metrics.store import MetricStore

_SWEEP_EVERY = 5.0
_BACKLOG = 4096
_OF_PAGES = 2560
"""Connections of the pages, with those that are accepted at once."""

_END_WITHIN = 10.0
_LONGEST_RETENTION_PERIOD = 3600.0

_MOST_REQUESTS = 16
"""Maximum number of pipelined requests of one connection."""

_LINGER = 0.5
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSING = b"Connection: close\r\n"


class StoreConnection(asyncio.BufferedProtocol):
    """Passes received bytes to the request parser, and writes the responses.

    All connections share one receive buffer. An allocation for each read would cost more than the
    parser.
    """

    def __init__(self, api: StoreApi, limits: ConnectionLimits) -> None:
        self._api = api
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._reader = RequestReader(api, limits, self)
        self._is_half_closed = False
        self._kept = 0
        """Size in bytes of the bodies of unanswered requests."""
        self._waiting: deque[StoreRequest] = deque()
        self._current: StoreRequest | None = None
        self._refusal: StoreResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_held = False
        """True if the next request waits until the client has read the last response."""
        self._since = self._loop.time()
        """Time at which the present state (request, response or idle) started."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or abort it beyond the limit."""
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        limits = self._limits
        peer = transport.get_extra_info("peername")
        address = network(str(peer[0])) if peer else ""
        if not limits.admit(address):
            self._api.count_refused(address)
            transport.abort()
            return
        self._address = address
        self._reader.address = address
        limits.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's state. Cancel a response that is being written."""
        del exc
        if self in self._limits.open:
            self._limits.open.remove(self)
            self._limits.release(self._address)
        self._reader.close()
        self._limits.body_bytes -= self._kept
        self._kept = 0
        self._waiting.clear()
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        del sizehint
        return self._limits.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes."""
        self.data_received(bytes(self._limits.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._reader.feed(data)

    def eof_received(self) -> bool:
        """Keep the connection open until the current request is answered."""
        self._is_half_closed = True
        return self._current is not None

    def pause_writing(self) -> None:
        """Pause writing until the client has read more of the response."""
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Continue with the response, or with the next request."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if self._is_held:
            self._is_held = False
            self._go_on()

    # RequestReceiver

    def take(self, request: StoreRequest) -> None:
        """Answer a request, or queue it."""
        self._kept += len(request.body)
        if self._current is None:
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _MOST_REQUESTS and self._transport is not None:
            self._transport.pause_reading()

    def refuse(self, response: StoreResponse) -> None:
        """Answer a request before it is complete, and close the connection."""
        self._refusal = response
        if self._current is None:
            self._end(response)

    def expect(self) -> None:
        """Send `100 Continue`, for which the client waits with its body."""
        if self._transport is not None and self._current is None:
            self._transport.write(_CONTINUE)

    # Responses

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        limits, began = self._limits, self._reader.began
        if self._transport is None:
            return
        is_stuck = self._drained is not None and now - self._since > limits.seconds
        if is_stuck or (began and now - began > limits.seconds):
            self._transport.abort()
        elif self._current is None and not began and now - self._since > limits.idle:
            self._transport.close()

    def is_busy(self) -> bool:
        """Return whether a request is not answered yet."""
        return self._current is not None

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def _answer(self, request: StoreRequest) -> None:
        if self._transport is None:
            return
        self._current = request
        self._limits.requests += 1
        try:
            self._api.respond(
                request.route, request.url, request.body, request.is_gzip, self._respond
            )
        except Exception:  # noqa: BLE001 - one request must not end the store
            logger.exception("%s %s failed", request.route.method.decode(), request.route.name)
            self._respond(fail(500, "internal error; the log of the store has details"))

    def _respond(self, response: StoreResponse) -> None:
        """Write the response to the current request."""
        request, transport = self._current, self._transport
        if request is None or transport is None:
            return
        self._since = self._loop.time()
        status, body, kind, more = response
        if not request.keeps_alive:
            more += _CLOSING
        if isinstance(body, bytes):
            if body or status != 200 or more:
                transport.write(head(status, kind, more, len(body)) + body)
            else:
                transport.write(_OK)
            self._finish(request)
            return
        self._task = self._loop.create_task(self._stream(request, response, body, more))

    async def _stream(
        self, request: StoreRequest, response: StoreResponse, parts: Iterator[bytes], more: bytes
    ) -> None:
        """Write a response in parts, not faster than the client reads."""
        transport = self._transport
        if transport is None:
            return
        try:
            begun = list(itertools.islice(parts, 3))
            if len(begun) < 3:
                size = sum(len(piece) for piece in begun)
                transport.write(head(response.status, response.kind, more, size) + b"".join(begun))
            else:
                is_chunked = request.takes_chunks
                transport.write(
                    head(response.status, response.kind, more, None, is_chunked=is_chunked)
                )
                await self._write_parts(itertools.chain(begun, parts), is_chunked)
        except (OSError, RuntimeError):
            transport.abort()
            return
        except Exception:  # noqa: BLE001 - one request must not end the store
            # The client sees the incomplete response.
            logger.exception("%s failed", request.route.name)
            transport.abort()
            return
        self._task = None
        self._finish(request)

    async def _write_parts(self, parts: Iterator[bytes], is_chunked: bool) -> None:
        """Write the rest of a response. Unless chunked, it ends with the connection."""
        for part in parts:
            transport = self._transport
            if transport is None:
                return
            if part:
                transport.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
            self._since = self._loop.time()
            if self._drained is not None:
                await self._drained
            await asyncio.sleep(0)
        if self._transport is not None and is_chunked:
            self._transport.write(b"0\r\n\r\n")

    def _finish(self, request: StoreRequest) -> None:
        """Finish a request, and continue with the next request of the connection."""
        self._current = None
        transport = self._transport
        if transport is None:
            return
        self._kept -= len(request.body)
        self._limits.body_bytes -= len(request.body)
        if not request.keeps_alive:
            transport.close()
        elif self._waiting:
            # Not a direct call: many pipelined requests would overflow the stack.
            self._current = self._waiting.popleft()
            if len(self._waiting) == _MOST_REQUESTS // 2:
                transport.resume_reading()
            if self._drained is None:
                self._loop.call_soon(self._go_on)
            else:
                self._is_held = True
        elif self._refusal is not None:
            self._end(self._refusal)
        elif self._is_half_closed:
            transport.close()

    def _go_on(self) -> None:
        """Answer the current request."""
        if self._current is not None:
            self._answer(self._current)

    def _end(self, response: StoreResponse) -> None:
        """Write the refusal as the last response."""
        transport = self._transport
        if transport is None:
            return
        body = response.body if isinstance(response.body, bytes) else b""
        transport.write(
            head(response.status, response.kind, response.more + _CLOSING, len(body)) + body
        )
        # An immediate close would reset a client that still sends its body, and lose the response.
        self._loop.call_later(_LINGER, transport.close)


def open_jobs(settings: StoreSettings) -> JobTable:
    """Open the table of jobs: the shared one if it is configured. Raise ConfigurationError."""
    if settings.jobs_database:
        from ccagent.stores.metrics.shared_job_table import SharedJobTable

        return SharedJobTable(settings.jobs_database, settings.jobs_password_file)
    path = os.path.join(settings.data, "jobs.sqlite")
    try:
        return open_job_table(path, survives_power_failure=settings.sync == "disk")
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path}: {error}; check the disk and the permissions") from error


class ListeningServer:
    """Serves an interface over HTTP. Subclasses set `api` and add work."""

    api: StoreApi

    def __init__(self, settings: StoreSettings, now: Callable[[], float] = time.time) -> None:
        """Set the limits and the key of tokens. Raise ConfigurationError."""
        self.settings = settings
        self.memory = plan_memory(settings.memory_cap)
        self.query_limits = QueryLimits(settings.limits.values, is_strict=settings.is_reference)
        key = settings.jwt_public_key
        self.verifier = TokenVerifier(key, now, frozenset(settings.web.staff)) if key else None
        self._receiver: NatsReceiver | None = None
        plan = plan_connections(
            settings.limits.connections, _BACKLOG, others=_OF_PAGES if settings.web.listen else 0
        )
        self._backlog = plan.backlog
        self.connections = ConnectionLimits(
            most=plan.most,
            bodies=parse_size(settings.limits.bodies),
            seconds=settings.limits.time.seconds,
        )
        self._stopping = asyncio.Event()
        self.port = 0

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raise ConfigurationError, OSError."""
        loop = asyncio.get_running_loop()
        handle_accept_errors(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        notifier = Notifier()
        host, port = split_address(self.settings.listen)
        context = make_tls_context(self.settings)
        server = await loop.create_server(
            lambda: StoreConnection(self.api, self.connections),
            host or None,
            port,
            ssl=context,
            ssl_handshake_timeout=self.connections.seconds if context else None,
            backlog=self._backlog,
        )
        self.port = server.sockets[0].getsockname()[1]
        say(f"listening on {describe_address(host, self.port, is_tls=context is not None)}")
        shorten_collections()
        sweep = self.repeat(_SWEEP_EVERY, lambda: self._sweep(notifier))
        # A separate task: slow work must not delay the watchdog and the closing of slow
        # connections.
        tick = self.repeat(_SWEEP_EVERY, self.tick)
        work = self.work() if self._receiver is None else [*self.work(), self._receiver.run()]
        tasks = [loop.create_task(one) for one in (sweep, tick, *work)]
        notifier.ready(f"port {self.port}")
        await self._stopping.wait()
        notifier.stopping()
        server.close()
        for task in tasks:
            task.cancel()
        await self._answer_rest()
        # A cancelled checkpoint that ended later would damage the file of the last one.
        await asyncio.wait(tasks, timeout=_END_WITHIN)
        await self.end()

    def stop(self) -> None:
        """Stop the server, as SIGTERM does."""
        self._stopping.set()

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        return []

    def retention_period(self) -> float:
        """Return the seconds between two removals of what is too old."""
        return min(self.settings.retention.seconds / 2, _LONGEST_RETENTION_PERIOD)

    async def tick(self) -> None:
        """Do periodic work, every few seconds."""

    async def end(self) -> None:
        """Store the remaining data at the end."""

    @staticmethod
    async def repeat(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Call `action` every `seconds`. Log exceptions and continue."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await action()
            except Exception:  # noqa: BLE001 - what is done now and then must go on
                logger.exception("housekeeping failed")

    def limit_series(self, store: MetricStore) -> SeriesLimits:
        """Return the configured limits of new series."""
        settings = self.settings
        return SeriesLimits(
            store,
            most=settings.limits.series,
            of_node=settings.limits.new_series,
            of_sender=self.memory.series_of_sender,
            retention=settings.retention.seconds,
            memory=self.memory.process,
        )

    def subscribe(self, ingest: LineIngest, commit: MessageCommit) -> None:
        """Receive lines over NATS, if there are subscriptions. Raise ConfigurationError."""
        if self.settings.nats.subscriptions:
            # nats-py is imported only if it is used.
            from ccagent.stores.metrics.nats_receiver import NatsReceiver

            self._receiver = NatsReceiver(self.settings.nats, ingest, commit)

    @staticmethod
    async def keep_footprints(events: JobEvents, footprints: FootprintKeeper) -> None:
        """Write waiting events of jobs, then the footprints of ended jobs."""
        if not events.retry():
            return
        try:
            await footprints.keep()
        except (sqlite3.Error, CcagentError) as error:
            logger.error("footprints of jobs: %s; retrying", error)

    async def _sweep(self, notifier: Notifier) -> None:
        """Close slow connections, and notify the watchdog."""
        now = asyncio.get_running_loop().time()
        for one in list(self.connections.open):
            one.check_time(now)
        notifier.alive()

    async def _answer_rest(self) -> None:
        """Wait for the responses to received requests, then close all connections."""
        deadline = time.monotonic() + _END_WITHIN
        while any(one.is_busy() for one in self.connections.open):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for one in list(self.connections.open):
            one.close()
