"""A non-blocking connection of one client: TLS handshake, request, response.

The standard library parses the heads of requests: the core package has no other HTTP library.
"""

from __future__ import annotations

import io
import re
import selectors
import socket
import ssl
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Literal

from ccagent.exporter.pages import ExporterAnswer, Request, text_answer

if TYPE_CHECKING:
    from ccagent.exporter.access import TlsContext


State = Literal["handshake", "reading", "working", "writing", "closed"]

_LARGEST_HEAD = 16 * 1024
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_REQUEST_LINE = re.compile(r"[!-~]+ [!-~]+ HTTP/1\.[0-9]")
_CONTROL = re.compile(rb"(?<!\r)\n|\r(?!\n)|[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""A control character or a line end other than CRLF: the library ends a head at two LF."""
_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_PIECE = 64 * 1024


class MalformedRequestError(ValueError):
    """A request that is malformed or not supported. status: of the response."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


class ScrapeHead(BaseHTTPRequestHandler):
    """The head of a request, without its final empty line.

    close_connection: whether the client wants no further request. Raise MalformedRequestError.
    """

    protocol_version = "HTTP/1.1"

    def __init__(self, head: bytes) -> None:  # not that of the library: it would serve a socket
        self.raw_requestline, _, rest = (head + b"\r\n\r\n").partition(b"\r\n")
        self.rfile = io.BufferedReader(io.BytesIO(rest))
        if _CONTROL.search(head) or not self.parse_request() or self._is_unusual(head):
            raise MalformedRequestError("not an HTTP/1 request")
        # The library finds `close` only if the field has no other word.
        words = ",".join(self.headers.get_all("connection", [])).lower().split(",")
        self.close_connection = self.close_connection or "close" in map(str.strip, words)
        if "transfer-encoding" in self.headers or any(
            length.strip() != "0" for length in self.headers.get_all("content-length", [])
        ):
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise MalformedRequestError("no request body allowed", status)

    def _is_unusual(self, head: bytes) -> bool:
        """Return whether the head has what the library accepts, and a proxy may read otherwise.

        A line that is not a header of its own is folded, or one that the library has skipped.
        """
        return (
            _REQUEST_LINE.fullmatch(self.requestline) is None
            or len(self.headers) != head.count(b"\r\n")
            or not all(map(_NAME.fullmatch, self.headers))
            or len(self.headers.get_all("host", [])) > 1
        )

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Raise MalformedRequestError for an error that the library has found."""
        del message, explain
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if code == status:
            raise MalformedRequestError("head too large", status)
        raise MalformedRequestError("not an HTTP/1 request")

    def handle_expect_100(self) -> bool:
        """Ask for no body."""
        return True

    def request(self) -> Request:
        """Return the request, without the client's address."""
        # A proxy may send the whole URL (RFC 9112, 3.2.2).
        path, _, query = _AUTHORITY.sub("", self.path, count=1).partition("?")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            key, text = name.lower(), value.strip()
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Request(self.command, path or "/", query, headers)


@lru_cache(16)
def parse_head(head: bytes) -> tuple[Request, bool]:
    """Return a request, and whether the client wants no further one.

    The heads of a scraper are equal: parsing takes as long as some collectors. Raise
    MalformedRequestError.
    """
    parsed = ScrapeHead(head)
    return parsed.request(), parsed.close_connection


class ExporterConnection:
    """A connection and its state.

    tls: wraps `connected`, before its handshake. state: `working` while a thread builds the
    response. events: mask for the selector. since: start of the state, by the monotonic clock.
    peer: the client's address; "" for a local socket.
    """

    def __init__(
        self,
        connected: socket.socket,
        now: float,
        tls: TlsContext | None = None,
        peer: str = "",
    ) -> None:
        self.socket = connected
        if connected.family != socket.AF_UNIX:
            # Otherwise a response waits for the acknowledgement of the TLS session tickets: 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.state: State = "handshake" if tls is not None else "reading"
        self.events = _READ
        self.since = now
        self.has_asked = False
        self.was_malformed = False
        self._tls = tls
        self.peer = peer
        self._received = bytearray()
        self._to_send = memoryview(b"")
        self._keeps_alive = False
        self._is_last = False
        self._is_head = False

    @property
    def is_idle(self) -> bool:
        """Return whether the connection waits for the first byte of its next request."""
        return self.state == "reading" and self.has_asked and not self._received

    def step(self, now: float) -> Request | None:
        """Continue until the socket would block. Return a request when its head is complete.

        `state` is `closed` afterwards if the client closed the connection or an error occurred.
        """
        try:
            if self.state == "handshake":
                self._shake_hands(now)
            if self.state == "reading":
                return self._read(now)
            if self.state == "writing" and self._write(now) and self._received:
                return self._take_request(now)
        except ssl.SSLWantReadError:
            self.events = _READ
        except ssl.SSLWantWriteError:
            self.events = _WRITE
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the client closed the connection, or the handshake failed
            self.state = "closed"
        return None

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.since = now
        self.events = _WRITE if state == "writing" else _READ

    def _shake_hands(self, now: float) -> None:
        assert isinstance(self.socket, ssl.SSLSocket) and self._tls  # noqa: S101, PT018 - made so
        self.socket.do_handshake()
        if not self._tls.accepts(self.socket):
            self.state = "closed"
            return
        self._enter("reading", now)

    def _read(self, now: float) -> Request | None:
        while True:
            piece = self.socket.recv(_PIECE)
            if not piece:
                self.state = "closed"
                return None
            if not self._received:
                self.since = now
            self._received += piece
            request = self._take_request(now)
            if request is not None or self.state != "reading":
                return request

    def _take_request(self, now: float) -> Request | None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _LARGEST_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large", now)
            return None
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        if end > _LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large", now)
            return None
        try:
            request, is_last = parse_head(head)
        except MalformedRequestError as error:
            self._refuse(error.status, str(error), now)
            return None
        request = request._replace(peer=self.peer)
        self._keeps_alive = not (is_last or self._is_last)
        self._is_head = request.method == "HEAD"
        self.has_asked = True
        self._enter("working", now)
        return request

    def _refuse(self, status: HTTPStatus, text: str, now: float) -> None:
        self.was_malformed = True
        self._received.clear()
        self._keeps_alive = self._is_head = False
        self.answer(text_answer(status, text), now)

    def answer(self, answer: ExporterAnswer, now: float) -> None:
        """Set the response to the request; `step` sends it."""
        keeps = self._keeps_alive
        encoded = encode_answer(answer, keeps_alive=keeps, with_body=not self._is_head)
        self._to_send = memoryview(encoded)
        self._enter("writing", now)

    def _write(self, now: float) -> bool:
        """Send the response. Return whether the connection stays open for another request."""
        while self._to_send:
            sent = self.socket.send(self._to_send[:_PIECE])
            self._to_send = self._to_send[sent:]
        if not self._keeps_alive:
            self.state = "closed"
            return False
        self._enter("reading", now)
        return True

    def end_after_answer(self) -> None:
        """Take no further request after the answer to this one."""
        self._is_last = True
        self._keeps_alive = False

    def close(self) -> None:
        """Close the socket without a TLS shutdown, which could block."""
        self.state = "closed"
        self.socket.close()


def encode_answer(answer: ExporterAnswer, *, keeps_alive: bool, with_body: bool = True) -> bytes:
    """Return the response as bytes."""
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
        *(f"{name}: {value}" for name, value in answer.headers),
        "\r\n",
    ]
    head = "\r\n".join(lines).encode("latin-1", "replace")
    return head + answer.body if with_body else head
