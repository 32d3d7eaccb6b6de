"""Limits for connections: slow clients, and clients with too many connections, are closed."""

from __future__ import annotations

import ipaddress
import itertools
from typing import TYPE_CHECKING, Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

SECONDS = 30.0
"""Time limit for a complete request, and for a stalled read of the response."""

MOST_CONNECTIONS = 2048
MOST_OF_ADDRESS = 256
"""Maximum of connections per IPv4 address or IPv6 /64 network.

A quarter of the connections that the server answers.
"""

_NUMBERS = itertools.count()
_LARGEST_REQUEST = 128 << 10


class TimedProtocol(HttpToolsProtocol):
    """A connection with time limits, and with a limit per address."""

    most: ClassVar[int] = MOST_CONNECTIONS
    unlimited: ClassVar[frozenset[str]] = frozenset()
    """Addresses without a limit of connections: proxies."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._received = 0
        self._number = next(_NUMBERS)
        self.address = ""
        """The client's address or network."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request, and apply the limits of connections."""
        super().connection_made(transport)
        self._reading = self.loop.call_later(SECONDS, transport.abort)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._limit_address(transport)

    def _limit_address(self, transport: asyncio.Transport) -> None:
        """Close a connection of the same address if the address has too many.

        The oldest connection without a running response is closed: many viewers can share an
        address.
        """
        peer = transport.get_extra_info("peername")
        if peer is None or peer[0] in self.unlimited:
            return
        self.address = _network(peer[0])
        open_ones = cast("set[TimedProtocol]", self.connections)
        same = [one for one in open_ones if one.address == self.address]
        if len(same) > MOST_OF_ADDRESS:
            min(same, key=TimedProtocol.rank).transport.abort()

    def rank(self) -> tuple[bool, int]:
        """Return the sort key of connections. The connection with the least one is closed first."""
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
        if self._reading is not None and self._received > _LARGEST_REQUEST:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        super().on_message_begin()
        if self._reading is None:
            self._reading = self.loop.call_later(SECONDS, self.transport.abort)

    def on_message_complete(self) -> None:
        """Cancel the time limit of the complete request."""
        self._stop_reading()
        self._received = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its response."""
        super().pause_writing()
        self._writing = self.loop.call_later(SECONDS, self.transport.abort)

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


def limit_addresses(unlimited: frozenset[str], most: int = MOST_CONNECTIONS) -> type[TimedProtocol]:
    """Return a class of connections with limits.

    unlimited: addresses without a limit. most: maximum of all connections.
    """
    return type("LimitedProtocol", (TimedProtocol,), {"unlimited": unlimited, "most": most})


def _network(address: str) -> str:
    """Return an IPv4 address unchanged, and the /64 network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((int(found), 64), strict=False))
