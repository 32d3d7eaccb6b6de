"""HTTP servers on uvicorn: connections with limits, for slow clients and for addresses.

uvicorn closes no connection without a complete request, answers beyond a limit instead of closing,
and loses the body of a request with `Upgrade`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ccagent.net.request_parser import RequestParser
from ccagent.net.urls import network

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

_NUMBERS = itertools.count()
_MOST_SMALL_PARTS = 8192
_SMALL_PART = 32
"""Minimum mean of the bytes of a body's parts, from this number of parts on."""


class ServingLimits(NamedTuple):
    """Limits of a server.

    connections, of_address: maximum of all connections, and per IPv4 address or IPv6 /64 network.
    seconds: time limit for a complete request, and for a stalled read of the response.
    request: maximum bytes of a request; with `body`, of its head. body: maximum bytes of a body, if
    the application has a lower limit, and a response for it. unlimited: addresses without a limit
    of their own: proxies. refused: called with the address of each connection beyond a limit.
    """

    connections: int
    of_address: int
    seconds: float = 30.0
    request: int = 128 << 10
    body: int = 0
    unlimited: frozenset[str] = frozenset()
    refused: Callable[[str], None] | None = None


class LimitedConnection(HttpToolsProtocol):
    """A connection with time limits, and with a limit per address."""

    limits: ClassVar[ServingLimits] = ServingLimits(2048, 256)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # As uvicorn does, ignore data after a request with `Connection: close`.
        self.parser: Any = RequestParser(self, ignores_rest=True)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._received = 0
        self._parts = self._size = 0
        self._has_head = False
        self._number = next(_NUMBERS)
        self.address = ""
        """The client's address or network."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request, and apply the limits of connections."""
        super().connection_made(transport)
        self._reading = self.loop.call_later(self.limits.seconds, transport.abort)
        peer = transport.get_extra_info("peername")
        self.address = network(str(peer[0])) if peer else ""
        if len(self.connections) > self.limits.connections:
            self._refuse(transport)
        elif peer and peer[0] not in self.limits.unlimited:
            self._limit_address()

    def _limit_address(self) -> None:
        """Close a connection of the same address if the address has too many.

        The oldest connection without a running response is closed: many clients can share an
        address.
        """
        open_ones = cast("set[LimitedConnection]", self.connections)
        same = [one for one in open_ones if one.address == self.address]
        if len(same) > self.limits.of_address:
            self._refuse(min(same, key=LimitedConnection.rank).transport)

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Close a connection beyond a limit."""
        transport.abort()
        if self.limits.refused is not None:
            self.limits.refused(self.address)

    def rank(self) -> tuple[bool, int]:
        """Return a key: connections with a running response and newer connections are greater."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete, self._number

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limits."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data. Abort the connection if a request is too large."""
        self._received += len(data)
        super().data_received(data)
        limit = self.limits.body if self._has_head else 0
        if self._reading is not None and self._received > (limit or self.limits.request):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        super().on_message_begin()
        if self._reading is None:
            self._reading = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field. Trailer fields are ignored."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Apply the limit of bodies, if there is one."""
        super().on_headers_complete()
        self._has_head = True
        if self.limits.body:
            self._received = 0

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body. Refuse chunks of a few bytes: each takes time from all clients."""
        self._parts += 1
        self._size += len(body)
        if self._parts > _MOST_SMALL_PARTS and self._size < self._parts * _SMALL_PART:
            raise ValueError("the chunks of the body are too small")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Cancel the time limit of the complete request."""
        self._parts = self._size = 0
        self._stop_reading()
        self._received = 0
        self._has_head = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its response."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit: the client reads again."""
        self._stop_writing()
        super().resume_writing()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def limit_connections(limits: ServingLimits) -> type[LimitedConnection]:
    """Return a class of connections with limits."""
    return type("LimitedConnection", (LimitedConnection,), {"limits": limits})


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server in the event loop of a program that handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no handlers."""
        yield


def silence_uvicorn() -> None:
    """Suppress uvicorn's messages about invalid requests: a client chooses their number."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
