"""A connection of the HTTP interface. The parser is that of Node.js (llhttp), through httptools."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools

from ccagent.log import logger
from ccagent.stores.metrics.request_head import RequestHead
from ccagent.stores.metrics.responses import StoreResponse, fail, head, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.api import ServerPath, StoreApi
    from ccagent.stores.metrics.connection_limits import ConnectionLimits

_LONGEST_HEADER = 32 << 10
"""Bytes of a request besides its body."""

_CHUNK = 64
"""Bytes that surround a chunk at most, on average."""

_MOST_REQUESTS = 16
"""Requests of one connection that may wait for their turn."""

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSING = b"Connection: close\r\n"


class StoreRequest(NamedTuple):
    """A whole request."""

    route: ServerPath
    url: bytes
    body: bytes
    is_gzip: bool
    keeps_alive: bool


class StoreConnection(asyncio.Protocol):
    """Reads requests and answers them in their order."""

    def __init__(self, api: StoreApi, limits: ConnectionLimits) -> None:
        self._api = api
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._head = RequestHead(api.largest_body)
        self._received = 0
        """Bytes of the request, its body included."""
        self._chunks = 0
        self._is_in_header = True
        self._is_half_closed = False
        self._route: ServerPath | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._kept = 0
        """Bytes of the bodies of requests that are not answered yet."""
        self._waiting: deque[StoreRequest] = deque()
        self._current: StoreRequest | None = None
        self._refusal: StoreResponse | None = None
        self._is_refused = False
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._since = self._loop.time()
        """When the present state began: a request, an answer, or idleness."""
        self._began_request = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many already."""
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        limits = self._limits
        if len(limits.open) >= limits.most:
            limits.refused += 1
            logger.warning("refused a connection: there are %d already", limits.most)
            transport.abort()
            return
        limits.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; an answer that is being written is given up."""
        del exc
        self._limits.open.discard(self)
        self._limits.body_bytes -= self._size + self._kept
        self._size = self._kept = 0
        self._waiting.clear()
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._is_refused:
            return  # the rest of a body that nobody wants
        self._received += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if not self._is_refused:
                self._refuse(text(400, f"no HTTP request: {error}"))
        else:
            around = self._received - self._size - _CHUNK * self._chunks
            if around > _LONGEST_HEADER and not self._is_refused:
                self._refuse(text(431, "the header or trailer is too long"))

    def _feed(self, data: bytes) -> None:
        """Parse bytes. An upgrade, as to HTTP/2, is declined by ignoring it (RFC 9110, 7.8)."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._parser = httptools.HttpRequestParser(self)
                data = data[upgrade.args[0] :]
                if self._is_refused or not data:
                    return
            else:
                return

    def eof_received(self) -> bool:
        """Answer what was asked before the client closed its side, then close ours."""
        self._is_half_closed = True
        return self._current is not None

    def pause_writing(self) -> None:
        """Wait until the client takes more of an answer."""
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # httptools

    def on_message_begin(self) -> None:
        """Begin to count the time of a request."""
        self._began_request = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line. Those after the body, in a trailer, change nothing."""
        if self._is_in_header:
            self._head.take(name, value)

    def on_chunk_header(self) -> None:
        """Count the chunks of a body."""
        self._chunks += 1

    def on_headers_complete(self) -> None:
        """Refuse a request before its body, if it can't be answered."""
        self._is_in_header = False
        if self._is_refused:
            return
        asked = self._head
        route = self._api.route(self._parser.get_method(), asked.url)
        refusal = asked.refusal
        if isinstance(route, StoreResponse):
            refusal = route
        else:
            refused = self._api.authorize(route, asked.authorization)
            if refused is None:
                self._route = self._api.restrict(route, asked.authorization)
            refusal = refused or refusal
        if refusal is not None:
            self._refuse(refusal)
        elif asked.is_expected and self._transport is not None and self._current is None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._is_refused:
            return
        self._size += len(body)
        limits = self._limits
        limits.body_bytes += len(body)
        if self._size > self._api.largest_body:
            self._refuse(fail(413, f"a body has at most {self._api.largest_body} bytes"))
        elif limits.body_bytes > limits.bodies:
            self._refuse(fail(503, "too many requests at once; try again"))
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or let it wait for its turn."""
        if self._is_refused or self._route is None:
            return
        parts = self._parts
        request = StoreRequest(
            self._route,
            self._head.url,
            parts[0] if len(parts) == 1 else b"".join(parts),
            self._head.is_gzip,
            self._parser.should_keep_alive(),
        )
        self._kept += len(request.body)
        self._reset()
        if self._current is None:
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _MOST_REQUESTS and self._transport is not None:
            self._transport.pause_reading()

    # Answers

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        limits = self._limits
        if self._transport is None:
            return
        is_stuck = self._drained is not None and now - self._since > limits.seconds
        if is_stuck or (self._began_request and now - self._began_request > limits.seconds):
            self._transport.abort()
        elif self._current is None and not self._began_request and now - self._since > limits.idle:
            self._transport.close()

    def is_busy(self) -> bool:
        """Return whether a request waits for its answer."""
        return self._current is not None

    def close(self) -> None:
        """Close the connection after what is written."""
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        self._head = RequestHead(self._api.largest_body)
        self._is_in_header = True
        self._received = self._chunks = 0
        self._began_request = 0.0
        self._parts = []
        self._size = 0
        self._route = None

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
            self._respond(fail(500, "an error in the store; its log says more"))

    def _respond(self, response: StoreResponse) -> None:
        """Write the answer to the present request."""
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
        """Write an answer part by part, not faster than the client reads."""
        transport = self._transport
        if transport is None:
            return
        try:
            first = next(parts)
            following = next(parts, None)
            pieces = [first] if following is None else [first, following]
            last = next(parts, None) if following is not None else None
            if last is None:
                size = sum(len(piece) for piece in pieces)
                transport.write(head(response.status, response.kind, more, size) + b"".join(pieces))
            else:
                transport.write(head(response.status, response.kind, more, None))
                await self._write_chunks([*pieces, last], parts)
        except (OSError, RuntimeError):
            transport.abort()
            return
        except Exception:  # noqa: BLE001 - one request must not end the store
            # The client sees that the answer is cut off.
            logger.exception("%s failed", request.route.name)
            transport.abort()
            return
        self._task = None
        self._finish(request)

    async def _write_chunks(self, begun: list[bytes], rest: Iterator[bytes]) -> None:
        import itertools

        for part in itertools.chain(begun, rest):
            transport = self._transport
            if transport is None:
                return
            if part:
                transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            self._since = self._loop.time()
            if self._drained is not None:
                await self._drained
            await asyncio.sleep(0)
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")

    def _finish(self, request: StoreRequest) -> None:
        """Go on with the next request of the connection."""
        self._current = None
        transport = self._transport
        if transport is None:
            return
        self._kept -= len(request.body)
        self._limits.body_bytes -= len(request.body)
        if not request.keeps_alive:
            transport.close()
        elif self._waiting:
            following = self._waiting.popleft()
            if len(self._waiting) == _MOST_REQUESTS // 2:
                transport.resume_reading()
            # Not at once: each of many pipelined requests would take a part of the stack.
            self._current = following
            self._loop.call_soon(self._answer, following)
        elif self._is_refused:
            self._end()
        elif self._is_half_closed:
            transport.close()

    def _refuse(self, response: StoreResponse) -> None:
        """Answer a request that is not read to its end, and close the connection."""
        self._is_refused = True
        self._limits.refused += 1
        self._parts = []
        self._refusal = response
        if self._current is None:
            self._end()

    def _end(self) -> None:
        """Write the refusal, which is the last answer."""
        response, transport = self._refusal, self._transport
        if response is None or transport is None:
            return
        body = response.body if isinstance(response.body, bytes) else b""
        transport.write(
            head(response.status, response.kind, response.more + _CLOSING, len(body)) + body
        )
        # A client that still sends its body would get a reset instead of the answer.
        self._loop.call_later(_LINGER, transport.close)


_LINGER = 0.5
