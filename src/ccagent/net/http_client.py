"""One kept connection to an HTTP server, with time and size limits for each answer."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.net.error_texts import explain_network_error, hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import WriteableBuffer

    from ccagent.net.urls import Server

LARGEST_ANSWER = 64 * 1024
"""Maximum bytes read of the body of an answer."""

_LARGEST_READ = 256 * 1024
"""Maximum bytes read of one answer: head, body and the framing of a transfer coding."""

_PART = 1024 * 1024
"""Maximum bytes of one read."""

_FRAMING = 2
"""Maximum bytes read for each byte of a body, for the framing of a transfer coding."""

HTTP_ERRORS = (OSError, http.client.HTTPException, UnicodeError)
"""Errors of a request without a complete answer."""

_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors of a connection that the server has closed."""


class HttpAnswer(NamedTuple):
    """The used parts of an answer."""

    status: int
    body: bytes
    retry_after: str
    date: str


class HttpConnection:
    """Requests over one connection, opened at first use. Redirects are not followed.

    server: host and port, or the path of a Unix socket. largest: maximum bytes read of a body; the
    rest is ignored.
    """

    def __init__(
        self,
        server: Server | str,
        context: ssl.SSLContext | None,
        seconds: float,
        proxy: Server | None = None,
        *,
        largest: int = LARGEST_ANSWER,
    ) -> None:
        self._server = server
        self._largest = largest
        self._context = context
        self._seconds = seconds
        self._proxy = proxy
        self._connection: http.client.HTTPConnection | None = None
        self.is_sent = False
        """True if the last request was sent: its content may be the cause of a missing answer."""

    def post(
        self, path: str, body: bytes, headers: dict[str, str], *, largest: int | None = None
    ) -> HttpAnswer:
        """Post a body and read the answer. Raise HTTPException or OSError.

        largest: maximum bytes read of this answer's body, below that of the connection.
        """
        return self._request("POST", path, body, headers, largest)

    def get(self, path: str, headers: dict[str, str], body: bytes | None = None) -> HttpAnswer:
        """Request a document and read it. Raise as `post` does."""
        return self._request("GET", path, body, headers)

    def request_head(self, path: str, headers: dict[str, str]) -> HttpAnswer:
        """Request only the head of an answer (HEAD). Raise as `post` does."""
        return self._request("HEAD", path, None, headers)

    def stream(self, path: str, headers: dict[str, str]) -> tuple[int, Iterator[bytes]]:
        """Request a document over a new connection. Return its status and the pieces of its body.

        The time limit is for each packet, and there is no limit of size. Raise as `post` does, also
        between pieces.
        """
        self.close()
        connection = self._connection = self._make_connection()
        connection.response_class = http.client.HTTPResponse
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, self._pieces(response)

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := response.read1(_PART):
                yield piece
            # An incomplete body lacks the last chunk, or bytes. read1 does not detect that.
            if not response.isclosed() or response.length:
                raise http.client.IncompleteRead(b"", response.length)
        finally:
            response.close()
            self.close()

    def explain(self, error: Exception, secrets: Iterable[str] = ()) -> str:
        """Return the reason for a missing answer as a phrase without secrets."""
        if sentence := explain_network_error(error, self._seconds):
            return sentence
        match error:
            case http.client.IncompleteRead():
                return "the connection ended in the middle of the answer"
            case http.client.RemoteDisconnected():
                return "the server closed the connection without an answer"
            case http.client.BadStatusLine() | http.client.UnknownProtocol():
                return f"the server does not speak HTTP/1: {hide_secrets(str(error), secrets)}"
            case OSError(strerror=str(text)) if text:
                return text
            case _:
                return hide_secrets(str(error), secrets) or type(error).__name__

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        largest: int | None = None,
    ) -> HttpAnswer:
        largest = self._largest if largest is None else largest
        if self._proxy is not None and self._context is None:
            path = f"http://{self._server}{path}"
        is_kept = self._connection is not None
        while True:
            try:
                return self._exchange(method, path, body, headers, largest)
            except BaseException as error:
                self.close()
                # A server may close a kept connection at any time: try once more.
                if is_kept and isinstance(error, _CLOSED):
                    is_kept = False
                    continue
                raise

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], largest: int
    ) -> HttpAnswer:
        self.is_sent = False
        if self._connection is not None and _has_been_written_to(self._connection.sock):
            # The server has closed it, or has sent data that would count as the answer to this
            # request.
            self.close()
        if self._connection is None:
            self._connection = self._make_connection()
            self._connection.connect()
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(self._seconds)
        # A server that refuses a body may send its answer before it has read the whole body.
        with contextlib.suppress(*_CLOSED):
            connection.request(method, path, body, headers)
        self.is_sent = True
        response = connection.getresponse()
        try:
            answer = _read(response, largest)
            if response.will_close or not response.isclosed():
                self.close()
        finally:
            response.close()
        after, date = (response.getheader(name, "") for name in ("Retry-After", "Date"))
        return HttpAnswer(response.status, answer, after, date)

    def _make_connection(self) -> http.client.HTTPConnection:
        if isinstance(self._server, str):
            return self._limit(_UnixConnection(self._server, self._seconds))
        host, port = self._proxy or self._server
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = _TlsConnection(host, port, timeout=self._seconds, context=self._context)
            if self._proxy is not None:
                connection.set_tunnel(*self._server)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._seconds)
        return self._limit(connection)

    def _limit(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        """Bound the answers of a connection in time and size, and return it."""
        largest = max(_LARGEST_READ, _FRAMING * self._largest)
        make = functools.partial(LimitedResponse, largest=largest)
        connection.response_class = make  # type: ignore[assignment] # only called
        return connection


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _TlsConnection(http.client.HTTPSConnection):
    """A connection with TLS, with or without a proxy."""

    _tunnel_host: str

    def _tunnel(self) -> None:
        # Before Python 3.12, CONNECT lacks the brackets around an IPv6 address.
        host = self._tunnel_host
        self._tunnel_host = f"[{host}]" if ":" in host else host
        try:
            super()._tunnel()  # type: ignore[misc]
        finally:
            self._tunnel_host = host


def _has_been_written_to(connected: socket.socket | None) -> bool:
    """Return whether a socket has data or the end of the stream before a request is sent."""
    if connected is None:
        return False
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))


def _read(response: http.client.HTTPResponse, largest: int) -> bytes:
    """Read a body up to the limit.

    Raise IncompleteRead if the body of a success is incomplete, HTTPException if it is malformed.
    """
    body = bytearray()
    try:
        while len(body) < largest and (part := response.read(min(_PART, largest - len(body)))):
            body += part
        if len(body) < largest and response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)  # noqa: TRY301 - as read() does
    except (http.client.IncompleteRead, *_CLOSED):
        if 200 <= response.status < 300:
            raise
    except ValueError as error:
        if 200 <= response.status < 300:
            raise http.client.HTTPException("the chunks of the answer are malformed") from error
    return bytes(body)


class _UntilDeadline(io.RawIOBase):
    """Reads one answer from a socket, with the socket's time limit and a size limit."""

    def __init__(self, connected: socket.socket, raw: io.RawIOBase, largest: int) -> None:
        self._socket = connected
        self._raw = raw
        self._deadline = time.monotonic() + (connected.gettimeout() or 0.0)
        self._largest = self._left = largest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        if self._left <= 0:
            size = self._largest // 1024
            raise http.client.HTTPException(f"the answer has more than {size} KiB around its text")
        self._socket.settimeout(rest)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class LimitedResponse(http.client.HTTPResponse):
    """An answer with a time limit for the whole answer, not for each packet.

    largest: maximum bytes of the whole answer, including head and framing.
    """

    def __init__(self, sock: socket.socket, *args: Any, largest: int, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach(), largest))

    def begin(self) -> None:
        """Read the head, and skip informational heads (1xx). http.client skips only 100.

        Otherwise the final head would count as the answer to the next request.
        """
        super().begin()
        while 100 < self.status < 200 and self.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment] # as before the first one
            super().begin()


def is_broken_off(error: Exception) -> bool:
    """Return whether the server has closed the connection without an answer."""
    return isinstance(error, (*_CLOSED, http.client.IncompleteRead))
