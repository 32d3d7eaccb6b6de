"""Connections that send no whole request, or are too many: uvicorn would keep them for ever."""

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
        """Close those that have been slow for too long; call it every few seconds.

        connections: the protocols of uvicorn.
        """
        now = self._monotonic()
        for each in list(connections):
            if not _is_unserved(each):
                self._since.pop(each, None)
            elif now - self._since.setdefault(each, now) > self._seconds:
                each.transport.close()


def _is_unserved(protocol: Any) -> bool:
    """Return whether a connection has no request, and no timer that ends its idleness."""
    cycle = protocol.cycle
    if cycle is None:
        return True
    return bool(cycle.response_complete) and protocol.timeout_keep_alive_task is None


class CountedProtocol(HttpToolsProtocol):
    """A connection that is closed at once if there are too many.

    uvicorn would answer with 503 and keep it: each takes a descriptor.
    """

    most: ClassVar[int] = 1000
    _SPARE: ClassVar[int] = 8
    """Connections beyond the limit that are answered with 503."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many already."""
        super().connection_made(transport)
        if len(self.connections) > self.most + self._SPARE:
            transport.abort()


def limit_connections(most: int) -> type[CountedProtocol]:
    """Return the class of connections of which there are at most so many."""
    return type("LimitedProtocol", (CountedProtocol,), {"most": most})
