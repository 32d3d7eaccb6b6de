"""A non-blocking connection of one client: TLS handshake, request, response."""

from __future__ import annotations

import selectors
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

from ccagent.exporter.http_request import (
    LARGEST_HEAD,
    MalformedRequestError,
    encode_answer,
    parse_request,
    text_answer,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ccagent.exporter.http_request import ExporterAnswer, Request

State = Literal["handshake", "reading", "working", "writing", "closed"]

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_PIECE = 64 * 1024


class ExporterConnection:
    """A connection and its state.

    state: `working` while a thread builds the response. events: mask for the selector. since: start
    of the state, by the monotonic clock. peer: the client's address; "" for a local socket.
    """

    def __init__(
        self,
        connected: socket.socket,
        now: float,
        *,
        is_tls: bool,
        check_peer: Callable[[ssl.SSLSocket], bool] | None = None,
        peer: str = "",
    ) -> None:
        self.socket = connected
        self.state: State = "handshake" if is_tls else "reading"
        self.events = _READ
        self.since = now
        self.has_asked = False
        self.was_malformed = False
        self._check_peer = check_peer
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
        assert isinstance(self.socket, ssl.SSLSocket)  # noqa: S101 - made so
        self.socket.do_handshake()
        if self._check_peer is not None and not self._check_peer(self.socket):
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
            if len(self._received) > LARGEST_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large", now)
            return None
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        if end > LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large", now)
            return None
        try:
            request = parse_request(head)
        except MalformedRequestError as error:
            self._refuse(error.status, str(error), now)
            return None
        self._keeps_alive = request.keeps_alive and not self._is_last
        self._is_head = request.method == "HEAD"
        self.has_asked = True
        self._enter("working", now)
        return request._replace(peer=self.peer)

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
