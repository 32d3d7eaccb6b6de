"""Connections of clients that are too slow, or too many: closed, so that they keep nobody out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

SECONDS = 30.0
"""For a whole request, and until a client takes more of its answer."""

MOST_CONNECTIONS = 2048
_LARGEST_REQUEST = 128 << 10


class TimedProtocol(HttpToolsProtocol):
    """A connection that must get on: with its request, and with reading the answer."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._reading = self.loop.call_later(SECONDS, transport.abort)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()

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
