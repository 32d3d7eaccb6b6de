"""Connections of clients that are too slow, or too many: closed, so that they keep nobody out."""

from __future__ import annotations

import ipaddress
import itertools
from typing import TYPE_CHECKING, Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

SECONDS = 30.0
"""For a whole request, and until a client takes more of its answer."""

MOST_CONNECTIONS = 2048
MOST_OF_ADDRESS = 256
"""Connections of one address, of IPv6 of one network; a quarter of those that are answered."""

_NUMBERS = itertools.count()
_LARGEST_REQUEST = 128 << 10


class TimedProtocol(HttpToolsProtocol):
    """A connection that must get on: with its request, and with reading the answer."""

    most: ClassVar[int] = MOST_CONNECTIONS
    unlimited: ClassVar[frozenset[str]] = frozenset()
    """Addresses with any number of connections: those of proxies."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._received = 0
        self._number = next(_NUMBERS)
        self.address = ""
        """The client's address or network."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._reading = self.loop.call_later(SECONDS, transport.abort)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._limit_address(transport)

    def _limit_address(self, transport: asyncio.Transport) -> None:
        """Close a connection of the same address, if that has too many: it locks out nobody else.

        The oldest goes that waits for a request, so that many viewers at one address go on.
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
        """Return how much a connection is worth to stay: one that is answered, the newest."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete, self._number

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        self._received += len(data)
        super().data_received(data)
        if self._reading is not None and self._received > _LARGEST_REQUEST:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request."""
        super().on_message_begin()
        if self._reading is None:
            self._reading = self.loop.call_later(SECONDS, self.transport.abort)

    def on_message_complete(self) -> None:
        """Wait no more: the request is whole."""
        self._stop_reading()
        self._received = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Begin to wait until the client takes more."""
        super().pause_writing()
        self._writing = self.loop.call_later(SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
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
    """Return the class of connections with a limit for all, and for each address but these."""
    return type("LimitedProtocol", (TimedProtocol,), {"unlimited": unlimited, "most": most})


def _network(address: str) -> str:
    """Return what one client may have many addresses of: of IPv6 a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((int(found), 64), strict=False))
