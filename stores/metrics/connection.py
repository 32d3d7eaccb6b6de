"""A connection of the HTTP interface. Its requests are answered in order."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.net.urls import network
from ccagent.stores.metrics.request_reader import RequestReader
from ccagent.stores.metrics.responses import StoreResponse, fail, head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.api import StoreApi
    from ccagent.stores.metrics.request_reader import ConnectionLimits, StoreRequest


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
