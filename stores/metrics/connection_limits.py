"""Limits that all connections of the HTTP interface share."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from ccagent.log import logger

_WARN_EVERY = 60.0
_READ_AT_ONCE = 256 << 10


class OpenConnection(Protocol):
    """What the server asks of a connection."""

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        ...

    def is_busy(self) -> bool:
        """Return whether a request waits for its answer."""
        ...

    def close(self) -> None:
        """Close the connection after what is written."""
        ...


class ConnectionLimits:
    """State that all connections share: their number, bytes of bodies in memory, time limits."""

    def __init__(self, *, most: int = 20_000, bodies: int = 1 << 30, seconds: float = 30.0) -> None:
        self.most = most
        self.bodies = bodies
        self.seconds = seconds
        """For a request to arrive, and for an answer to be taken."""
        self.idle = 300.0
        """Seconds without a request after which a connection is closed."""
        self.body_bytes = 0
        self.buffer = memoryview(bytearray(_READ_AT_ONCE))
        """Where bytes arrive, those of one connection at a time."""
        self.open: set[OpenConnection] = set()
        self.requests = 0
        self.refused = 0
        self._warned = -_WARN_EVERY

    def warn(self) -> None:
        """Log, once a minute, that connections are refused."""
        if monotonic() - self._warned >= _WARN_EVERY:
            self._warned = monotonic()
            logger.warning(
                "refused a connection: there are %d already; %d were refused so far",
                self.most, self.refused,
            )  # fmt: skip
