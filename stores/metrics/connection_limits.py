"""Limits that all connections of the HTTP interface share."""

from __future__ import annotations

from typing import Protocol

from ccagent.log import logger

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
        self._of_address: dict[str, int] = {}
        """Number of open connections by address."""
        self.requests = 0
        self.refused = 0

    def admit(self, address: str) -> bool:
        """Count a new connection. Return False beyond the limits: one address has half of all."""
        of_address = self._of_address.get(address, 0)
        if len(self.open) >= self.most:
            reason = f"{self.most} are open (limits.connections)"
        elif address and of_address >= max(1, self.most // 2):
            reason = f"{of_address} of one address are open (half of limits.connections)"
        else:
            self._of_address[address] = of_address + 1
            return True
        self.refused += 1
        logger.warning("refused a connection: %s", reason, key="store connections")
        return False

    def release(self, address: str) -> None:
        """Subtract a closed connection."""
        left = self._of_address.pop(address, 0) - 1
        if left > 0:
            self._of_address[address] = left
