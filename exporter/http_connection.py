"""A connection of the HTTP server: its requests, by the standard library's parser; its state."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import threading
import time
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ccagent.exporter.pages import ExporterAnswer, Request, text_answer
from ccagent.log import logger
from ccagent.net.urls import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

StopReason = Literal["evicted", "malformed", "refused", "slow"]
State = Literal["handshake", "reading", "idle", "working", "writing"]

_TEXTS: dict[StopReason, str] = {
    "evicted": "connection closed for a client of another address: too many at once",
    "malformed": "request refused: malformed or too large",
    "refused": "connection refused: too many at once",
    "slow": "connection closed: slower than client-timeout",
}
_NAMED = 20
"""Maximum of addresses in the log per hour and reason. All others share a line."""
_PERIOD = 3600.0
_PAUSE = 0.5
_LARGEST_HEAD = 16 * 1024
_READ_AFTER = 4
"""Maximum of pieces read from a client after its request was refused."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORBIDDEN = re.compile(r"[\0\r\n]")
_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class StoppedClients:
    """Counters of stopped clients, by reason.

    An address is named in the log once per hour and reason; the log counts its repetitions.
    """

    def __init__(self) -> None:
        self._counts: dict[StopReason, int] = dict.fromkeys(get_args(StopReason), 0)
        self._named: set[tuple[StopReason, str]] = set()
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def note(self, peer: str, reason: StopReason) -> None:
        """Count a stopped client and log it. peer: its address; "" for a local socket."""
        named = (reason, network(peer))
        with self._lock:
            self._counts[reason] += 1
            now = time.monotonic()
            if now > self._since + _PERIOD:
                self._named.clear()
                self._since = now
            is_new = named not in self._named
            is_further = is_new and sum(each == reason for each, _ in self._named) >= _NAMED
            if is_new and not is_further:
                self._named.add(named)
        shown = "further addresses" if is_further else named[1] or "local socket"
        logger.warning("exporter: %s: %s", shown, _TEXTS[reason])

    def rows(self) -> Iterator[tuple[tuple[str], int]]:
        """Return reason and count of stopped clients since the start."""
        for reason, count in self._counts.items():
            yield (reason,), count


class Client:
    """A connection as the server sees it. peer: the client's address; "" for a local socket.

    since: start of the state, by the monotonic clock. is_last: no further request is taken.
    """

    def __init__(self, connected: socket.socket, peer: str, *, is_tls: bool) -> None:
        self.socket = connected
        self.peer = peer
        self.is_last = False
        self.state: State = "handshake" if is_tls else "reading"
        self.since = time.monotonic()

    def enter(self, state: State) -> None:
        """Note the start of a state."""
        self.state, self.since = state, time.monotonic()

    def stop(self) -> None:
        """End the connection: its thread reads or writes nothing more."""
        with contextlib.suppress(OSError):
            # Not that of SSLSocket: its thread would see a socket without TLS.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _HeadReader(io.BufferedReader):
    """A reader of heads. Raise LineTooLong for a head larger than `left` bytes.

    is_at_end: whether the last line was empty, as the end of a head is.
    """

    left = 0
    is_at_end = False

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(self.left + 1 if size is None or size < 0 else size)
        self.left -= len(line)
        if self.left < 0:
            raise LineTooLong("head")
        self.is_at_end = line in {b"\r\n", b"\n"}
        return line


class Connection(BaseHTTPRequestHandler):
    """The requests of one connection, served until it ends. build_answer: of a request."""

    protocol_version = "HTTP/1.1"
    # An error in the first line has a status line, too.
    default_request_version = request_version = "HTTP/1.0"
    command = ""
    wbufsize = 64 * 1024

    def __init__(
        self,
        client: Client,
        stopped: StoppedClients,
        build_answer: Callable[[Request], ExporterAnswer],
    ) -> None:
        self._client = client
        self._stopped = stopped
        self._build_answer = build_answer
        super().__init__(client.socket, (client.peer, 0), cast("Any", None))

    def setup(self) -> None:
        """Make the files of the connection."""
        super().setup()
        self.rfile = _HeadReader(cast("io.RawIOBase", self.request.makefile("rb", buffering=0)))

    def handle_one_request(self) -> None:
        """Read a request and answer it."""
        self.close_connection = True
        head = cast("_HeadReader", self.rfile)
        head.left = _LARGEST_HEAD
        if not head.peek(1):
            return
        self._client.enter("reading")
        try:
            self.raw_requestline = head.readline()
            if not self.raw_requestline.endswith(b"\n") or not self.parse_request():
                return
        except LineTooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if not head.is_at_end:  # the client has closed the connection
            self.close_connection = True
        elif self._is_malformed():
            self.send_error(HTTPStatus.BAD_REQUEST)
        elif "transfer-encoding" in self.headers or any(
            length != "0" for length in self.headers.get_all("content-length", [])
        ):
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no request body allowed")
        else:
            self._answer()

    def _is_malformed(self) -> bool:
        """Return whether the head has what the library accepts, and another server may not."""
        return (
            len(self.requestline.split(" ")) != 3
            or not self.requestline.isascii()
            or bool(self.headers.defects)
            or not all(map(_NAME.fullmatch, self.headers))
            or any(_FORBIDDEN.search(value) for value in self.headers.values())
        )

    def _answer(self) -> None:
        # A proxy may send the whole URL (RFC 9112, 3.2.2).
        path, _, query = _AUTHORITY.sub("", self.path, count=1).partition("?")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        self._client.enter("working")
        request = Request(self.command, path or "/", query, headers, self._client.peer)
        answer = self._build_answer(request)
        if self._client.is_last:
            self.close_connection = True
        self._send(answer)

    def _send(self, answer: ExporterAnswer) -> None:
        self._client.enter("writing")
        self.send_response_only(answer.status)
        for name, value in (
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
            ("Connection", "close" if self.close_connection else "keep-alive"),
            *answer.headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()
        self._client.enter("idle")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request, and end the connection."""
        del explain
        self.close_connection = True
        status = HTTPStatus(code)
        if status in {HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, HTTPStatus.NOT_IMPLEMENTED}:
            status = HTTPStatus.BAD_REQUEST
        self._stopped.note(self._client.peer, "malformed")
        self._send(text_answer(status, message or status.phrase.lower()))
        # A close with unread bytes would make the kernel discard the answer.
        socket.socket.shutdown(self.request, socket.SHUT_WR)
        self.request.settimeout(_PAUSE)
        for _ in range(_READ_AFTER):
            if not self.request.recv(64 * 1024):
                break

    def log_message(self, *arguments: Any) -> None:
        """Write no line: a client chooses the number of its requests."""
