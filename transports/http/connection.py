"""One kept connection to an HTTP server, with limits of time and size for each whole answer."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.transports.peer_text import peer_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import WriteableBuffer

    from ccagent.transports.urls import Server

_LARGEST_ANSWER = 64 * 1024
"""Bytes of the body of an answer that are read."""

_LARGEST_READ = 256 * 1024
"""Bytes that are read for one answer: head, body and what a transfer coding adds."""

_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What it looks like when the other side has closed the connection."""


_TOO_MUCH = f"its answer has more than {_LARGEST_READ // 1024} KiB around its text"


class Answer(NamedTuple):
    """The parts of an answer that matter."""

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
        self.is_sent = False
        """Whether the last request has left, so that no answer may be due to what it holds."""

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
            except BaseException as error:
                self.close()
                # A server may close a kept connection at any time: that is worth one more try.
                if is_kept and isinstance(error, _CLOSED):
                    is_kept = False
                    continue
                raise

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        self.is_sent = False
        if self._connection is None:
            self._connection = self._made()
            self._connection.connect()
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(self._seconds)
        # A server that refuses a body half-way has answered, and says why.
        with contextlib.suppress(*_CLOSED):
            connection.request(method, path, body, headers)
        self.is_sent = True
        response = connection.getresponse()
        try:
            answer = _read(response)
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


def _read(response: http.client.HTTPResponse) -> bytes:
    """Read a body up to the limit. Raises IncompleteRead if that of a success is cut short."""
    body = b""
    try:
        while len(body) < _LARGEST_ANSWER and (part := response.read(_LARGEST_ANSWER - len(body))):
            body += part
        if len(body) < _LARGEST_ANSWER and response.length:
            raise http.client.IncompleteRead(body, response.length)  # noqa: TRY301 - as read does
    except (http.client.IncompleteRead, *_CLOSED):
        if 200 <= response.status < 300:
            raise
    return body


class _UntilDeadline(io.RawIOBase):
    """Reads a socket for its time limit in all, however slowly the other side drips.

    And not more than the limit for one answer, however much the other side sends.
    """

    def __init__(self, connected: socket.socket, raw: io.RawIOBase) -> None:
        self._socket = connected
        self._raw = raw
        self._deadline = time.monotonic() + (connected.gettimeout() or 0.0)
        self._left = _LARGEST_READ

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        if self._left <= 0:
            raise http.client.HTTPException(_TOO_MUCH)
        self._socket.settimeout(rest)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that has the time limit for all of it, not for each of its packets."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach()))


def is_broken_off(error: Exception) -> bool:
    """Return whether the other side has ended the connection instead of answering."""
    return isinstance(error, (*_CLOSED, http.client.IncompleteRead))


def explained(error: Exception, secrets: Iterable[str] = ()) -> str:
    """Return in half a sentence why a request got no answer, without our secrets."""
    match error:
        case socket.gaierror():
            return f"the name does not resolve: {error.strerror}"
        case UnicodeError():
            return "the name does not resolve: it is no host name"
        case ssl.SSLCertVerificationError():
            return f"its certificate can't be trusted: {error.verify_message}"
        case ConnectionRefusedError():
            return "Connection refused: nobody listens there"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or error.strerror}); perhaps it does not speak TLS"
        case TimeoutError():
            return "no answer in time"
        case http.client.IncompleteRead():
            return "the connection ended in the middle of its answer"
        case http.client.RemoteDisconnected():
            return "it closed the connection without an answer"
        case OSError(strerror=str(text)) if text:
            return text
        case _:
            return peer_text(str(error), secrets) or type(error).__name__
