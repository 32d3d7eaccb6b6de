"""A connection of the HTTP interface: its requests are answered in their order."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.stores.metrics.request_reader import RequestReader
from ccagent.stores.metrics.responses import StoreResponse, fail, head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.api import StoreApi
    from ccagent.stores.metrics.connection_limits import ConnectionLimits
    from ccagent.stores.metrics.request_reader import StoreRequest

_MOST_REQUESTS = 16
"""Requests of one connection that may wait for their turn."""

_LINGER = 0.5
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSING = b"Connection: close\r\n"


class StoreConnection(asyncio.BufferedProtocol):
    """Passes bytes to a reader of requests, and answers those.

    All connections receive into one buffer: memory for each time would cost more than the parser.
    """

    def __init__(self, api: StoreApi, limits: ConnectionLimits) -> None:
        self._api = api
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(api, limits, self)
        self._is_half_closed = False
        self._kept = 0
        """Bytes of the bodies of requests that are not answered yet."""
        self._waiting: deque[StoreRequest] = deque()
        self._current: StoreRequest | None = None
        self._refusal: StoreResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_held = False
        """True if the next request waits until the client has read the last answer."""
        self._since = self._loop.time()
        """When the present state began: a request, an answer, or idleness."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many already."""
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        limits = self._limits
        if len(limits.open) >= limits.most:
            limits.refused += 1
            limits.warn()
            transport.abort()
            return
        limits.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; an answer that is being written is given up."""
        del exc
        self._limits.open.discard(self)
        self._reader.close()
        self._limits.body_bytes -= self._kept
        self._kept = 0
        self._waiting.clear()
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        del sizehint
        return self._limits.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that came."""
        self.data_received(bytes(self._limits.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        self._reader.feed(data)

    def eof_received(self) -> bool:
        """Answer what was asked before the client closed its side, then close ours."""
        self._is_half_closed = True
        return self._current is not None

    def pause_writing(self) -> None:
        """Wait until the client takes more of an answer."""
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Go on with the answer, or with the next request."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if self._is_held:
            self._is_held = False
            self._go_on()

    # RequestReceiver

    def take(self, request: StoreRequest) -> None:
        """Answer a request, or let it wait for its turn."""
        self._kept += len(request.body)
        if self._current is None:
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _MOST_REQUESTS and self._transport is not None:
            self._transport.pause_reading()

    def refuse(self, response: StoreResponse) -> None:
        """Answer a request that is not read to its end, and close the connection."""
        self._refusal = response
        if self._current is None:
            self._end(response)

    def expect(self) -> None:
        """Ask for the body that a client holds back."""
        if self._transport is not None and self._current is None:
            self._transport.write(_CONTINUE)

    # Answers

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
        """Return whether a request waits for its answer."""
        return self._current is not None

    def close(self) -> None:
        """Close the connection after what is written."""
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
            # The client sees that the answer is cut off.
            logger.exception("%s failed", request.route.name)
            transport.abort()
            return
        self._task = None
        self._finish(request)

    async def _write_parts(self, parts: Iterator[bytes], is_chunked: bool) -> None:
        """Write the rest of an answer. What is not in chunks ends with the connection."""
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
        """End a request, and go on with the next one of the connection."""
        self._current = None
        transport = self._transport
        if transport is None:
            return
        self._kept -= len(request.body)
        self._limits.body_bytes -= len(request.body)
        if not request.keeps_alive:
            transport.close()
        elif self._waiting:
            # Not at once: each of many pipelined requests would take a part of the stack.
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
        """Answer the request whose turn it is."""
        if self._current is not None:
            self._answer(self._current)

    def _end(self, response: StoreResponse) -> None:
        """Write the refusal, which is the last answer."""
        transport = self._transport
        if transport is None:
            return
        body = response.body if isinstance(response.body, bytes) else b""
        transport.write(
            head(response.status, response.kind, response.more + _CLOSING, len(body)) + body
        )
        # A client that still sends its body would get a reset instead of the answer.
        self._loop.call_later(_LINGER, transport.close)
