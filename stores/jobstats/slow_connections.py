"""Closing of connections without a complete request, or beyond a limit. uvicorn closes neither."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable


class SlowConnections:
    """Closes connections on which the head of a request takes longer than `seconds`."""

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def close(self, connections: Iterable[Any]) -> None:
        """Close connections that are slow for too long. Call every few seconds.

        connections: uvicorn's protocol objects.
        """
        now = self._monotonic()
        for each in list(connections):
            if not _is_unserved(each):
                self._since.pop(each, None)
            elif now - self._since.setdefault(each, now) > self._seconds:
                each.transport.close()


def _is_unserved(protocol: Any) -> bool:
    """Return whether a connection has no request, and no keep-alive timer."""
    cycle = protocol.cycle
    if cycle is None:
        return True
    return bool(cycle.response_complete) and protocol.timeout_keep_alive_task is None


class CountedProtocol(HttpToolsProtocol):
    """A connection that is aborted beyond the limit.

    uvicorn would respond with 503 and keep the connection and its descriptor.
    """

    most: ClassVar[int] = 1000
    _SPARE: ClassVar[int] = 8
    """Connections beyond the limit that get the response 503."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, or abort it beyond the limit."""
        super().connection_made(transport)
        if len(self.connections) > self.most + self._SPARE:
            transport.abort()


def limit_connections(most: int) -> type[CountedProtocol]:
    """Return a protocol class with a limit of connections."""
    return type("LimitedProtocol", (CountedProtocol,), {"most": most})
