"""Requests that ask for another protocol: HTTP/2 as curl and Java ask for it, WebSocket."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess

UPGRADES = (
    (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    ),
    (
        b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    ),
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def ask_with_curl(url: str, *options: str) -> int:
    """Return the status of the answer to `curl --http2`."""
    done = subprocess.run(
        ["curl", "-sS", "--http2", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}",
         *options, url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def statuses(port: int, *parts: bytes, ends: bool = False) -> list[int]:
    """Return the statuses of all answers on a connection, until the server ends it.

    ends: the client sends its end after the parts.
    """
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        found = b""
        # A server that refuses a body may end the connection before it has all of it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                client.sendall(part)
            if ends:
                client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(65536):
                found += data
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", found)]


def ask_for_upgrades(port: int, line: bytes, body: bytes = b"") -> list[list[int]]:
    """Return the statuses of a request with each upgrade, and of one after it on the connection.

    line: method, path and version. The body is sent with a length and in chunks, at once and in
    pieces.
    """
    found: list[list[int]] = []
    last = b"GET /no-such-path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    framings = [b"Content-Length: %d\r\n\r\n%b" % (len(body), body)] if body else [b"\r\n"]
    if body:
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        framings.append(b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
    for upgrade in UPGRADES:
        for framing in framings:
            request = line + b"\r\nHost: x\r\n" + upgrade + framing
            found.append(statuses(port, request + last))
            found.append(statuses(port, *(bytes([one]) for one in request), last))
    return found
