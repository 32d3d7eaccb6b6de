"""Limits that all connections of the HTTP interface share."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from ccagent.log import logger

_WARN_EVERY = 60.0
_READ_AT_ONCE = 256 << 10


class OpenConnection(Protocol):
    """The methods of a connection that the server calls."""

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        ...

    def is_busy(self) -> bool:
        """Return whether a request is not answered yet."""
        ...

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        ...


class ConnectionLimits:
    """State shared by all connections: their number, bytes of bodies in memory, time limits."""

    def __init__(self, *, most: int = 20_000, bodies: int = 1 << 30, seconds: float = 30.0) -> None:
        self.most = most
        self.bodies = bodies
        self.seconds = seconds
        """Maximum duration of receiving a request, and of sending a response."""
        self.idle = 300.0
        """Seconds of idleness until a connection is closed."""
        self.body_bytes = 0
        self.buffer = memoryview(bytearray(_READ_AT_ONCE))
        """The receive buffer shared by all connections."""
        self.open: set[OpenConnection] = set()
        self.requests = 0
        self.refused = 0
        self._warned = -_WARN_EVERY

    def warn(self) -> None:
        """Log, at most once a minute, that connections are refused."""
        if monotonic() - self._warned >= _WARN_EVERY:
            self._warned = monotonic()
            logger.warning(
                "refused a connection: %d are open (limits.connections); %d refused so far",
                self.most, self.refused,
            )  # fmt: skip
