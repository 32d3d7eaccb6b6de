"""One kept connection to an HTTP server, with a time limit for each whole answer."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from ccagent.transports.urls import Server

_LARGEST_ANSWER = 64 * 1024
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What it looks like when the other side has closed the connection."""


class Answer(NamedTuple):
    """What a server says to a request."""

    status: int
    body: bytes
    retry_after: str
    date: str


class Connection:
    """Posts over one connection, which is made when it is needed. Redirects are not followed."""

    def __init__(
        self, server: Server, context: ssl.SSLContext | None, seconds: float, proxy: Server | None
    ) -> None:
        self._server = server
        self._context = context
        self._seconds = seconds
        self._proxy = proxy
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Post a body and read the answer. Raises HTTPException or OSError."""
        return self._request("POST", path, body, headers)

    def ask(self, path: str, headers: dict[str, str]) -> Answer:
        """Ask without a body for nothing but the head of an answer (HEAD). Raises as `post`."""
        return self._request("HEAD", path, None, headers)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        if self._proxy is not None and self._context is None:
            path = f"http://{self._server}{path}"
        is_kept = self._connection is not None
        while True:
            try:
                return self._exchange(method, path, body, headers)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                # A server may close a kept connection at any time: that is worth one more try.
                if is_kept and isinstance(error, _CLOSED):
                    is_kept = False
                    continue
                raise

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        if self._connection is None:
            self._connection = self._made()
            self._connection.connect()
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(self._seconds)
        # A server that refuses a body half-way has answered, and says why.
        with contextlib.suppress(*_CLOSED):
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        try:
            answer = response.read(_LARGEST_ANSWER)
            if response.will_close or not response.isclosed():
                self.close()
        finally:
            response.close()
        after, date = (response.getheader(name, "") for name in ("Retry-After", "Date"))
        return Answer(response.status, answer, after, date)

    def _made(self) -> http.client.HTTPConnection:
        host, port = self._proxy or self._server
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._seconds, context=self._context
            )
            if self._proxy is not None:
                connection.set_tunnel(*self._server)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._seconds)
        connection.response_class = _Response
        return connection


class _UntilDeadline(io.RawIOBase):
    """Reads a socket for its time limit in all, however slowly the other side drips."""

    def __init__(self, connected: socket.socket, raw: io.RawIOBase) -> None:
        self._socket = connected
        self._raw = raw
        self._deadline = time.monotonic() + (connected.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(rest)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that has the time limit for all of it, not for each of its packets."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach()))


def explained(error: Exception) -> str:
    """Say in half a sentence why a request got no answer."""
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve: {error.strerror}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message}"
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused: nobody listens there"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error.strerror}); perhaps it does not speak TLS"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
