"""Ports for the servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port that no outgoing connection takes while its server does not listen."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            # Below those that the kernel gives to connections (ip_local_port_range).
            port = random.SystemRandom().randrange(10_000, 32_000)
            free.bind(("127.0.0.1", port))
            return port
