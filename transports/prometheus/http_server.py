"""The HTTP server: one thread for all connections, a few threads that build responses.

A client that is slow or stalls in its handshake occupies only a descriptor.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.transports.prometheus.http_connection import ExporterConnection
from ccagent.transports.prometheus.http_request import text_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.transports.prometheus.http_request import ExporterAnswer, Request
    from ccagent.transports.prometheus.tls import TlsContext

_IDLE = 300.0
"""Seconds after which an idle connection is closed."""
_TICK = 1.0
_ACCEPTED_AT_ONCE = 64
_WORKERS = 4
_PAUSE = 0.5
_SHORT_PAUSE = 0.01
_GRACE = 0.25
"""Seconds before which a new client, or a client that is reading its response, is not evicted."""


class AnswerWorkers:
    """Threads that build responses, started on demand."""

    def __init__(
        self,
        answer: Callable[[Request], ExporterAnswer],
        hand_back: Callable[[int, ExporterAnswer], None],
    ) -> None:
        self._answer = answer
        self._hand_back = hand_back
        self._requests: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    def take(self, number: int, request: Request) -> bool:
        """Queue a request of a connection. Return False if no thread can be started."""
        if self._busy >= self._count and self._count < _WORKERS:
            try:
                threading.Thread(target=self._work, name="exporter-answer", daemon=True).start()
                self._count += 1
            except RuntimeError as error:
                logger.warning("exporter: no thread for an answer: %s", error)
                if not self._count:
                    return False
        self._busy += 1
        self._requests.put((number, request))
        return True

    def done(self) -> None:
        """Count a thread as free after the server has received its response."""
        self._busy -= 1

    def close(self) -> None:
        """End the threads after the queued requests."""
        for _ in range(self._count):
            self._requests.put(None)

    def _work(self) -> None:
        while (item := self._requests.get()) is not None:
            number, request = item
            try:
                answer = self._answer(request)
            except Exception:  # noqa: BLE001 - the thread must survive
                logger.exception("exporter: an answer failed")
                answer = text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "unforeseen error")
            self._hand_back(number, answer)


class ExporterServer:
    """An HTTP server for listening sockets.

    answer: builds the response to a request, in a thread. most: maximum of open connections.
    seconds: time limit for a client to send a request or to receive a response.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        answer: Callable[[Request], ExporterAnswer],
        *,
        tls: TlsContext | None = None,
        most: int = 40,
        seconds: float = 10.0,
    ) -> None:
        self._sockets = [*sockets]
        self._tls = tls
        self._most = most
        self._seconds = seconds
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, ExporterConnection] = {}
        self._numbers = 0
        self._answers: queue.SimpleQueue[tuple[int, ExporterAnswer]] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._closing = threading.Event()
        self._workers = AnswerWorkers(answer, self._hand_back)
        for each in (self._reader, self._writer, *self._sockets):
            each.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="exporter-http", daemon=True)

    def start(self) -> None:
        """Start to serve. Raise RuntimeError if no thread can be started."""
        self._selector.register(self._reader, selectors.EVENT_READ, None)
        for each in self._sockets:
            self._selector.register(each, selectors.EVENT_READ, None)
        self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Close the sockets and all connections. seconds: maximum wait for the thread."""
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._workers.close()

    def _hand_back(self, number: int, answer: ExporterAnswer) -> None:
        self._answers.put((number, answer))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes the thread anyway
            self._writer.send(b"x")

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._turn()
                except Exception:  # noqa: BLE001 - no client may end the server
                    logger.exception("exporter: unforeseen error in the server; continuing")
                    self._closing.wait(_PAUSE)
        finally:
            self._end()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK):
            now = time.monotonic()
            if key.fileobj is self._reader:
                with contextlib.suppress(OSError):
                    self._reader.recv(4096)
            elif key.data is None:
                self._accept(key.fileobj, now)
            elif key.data in self._connections:
                self._step(key.data, now)
        now = time.monotonic()
        while not self._answers.empty():
            number, answer = self._answers.get()
            self._workers.done()
            connection = self._connections.get(number)
            if connection is not None:
                connection.answer(answer, now)
                self._step(number, now)
        self._close_late(now)

    def _accept(self, listening: object, now: float) -> None:
        assert isinstance(listening, socket.socket)  # noqa: S101 - registered so
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self._connections) >= self._most and self._find_longest(now, _GRACE) is None:
                # No connection may be evicted yet: further clients wait in the kernel's backlog.
                self._closing.wait(_SHORT_PAUSE)
                return
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example no free descriptor
                logger.warning("exporter: can't accept connections: %s", error)
                self._make_room(now, 0.0)
                self._closing.wait(_PAUSE)
                return
            if len(self._connections) >= self._most:
                self._make_room(now, _GRACE)
            is_local = listening.family == socket.AF_UNIX
            self._add(connected, "" if is_local else str(address[0]), now)

    def _add(self, connected: socket.socket, peer: str, now: float) -> None:
        connected.setblocking(False)
        check = None
        if self._tls is not None:
            try:
                connected = self._tls.wrap(connected)
            except (OSError, ValueError) as error:
                logger.warning("exporter: no TLS: %s", error)
                connected.close()
                return
            check = self._tls.accepts
        connection = ExporterConnection(
            connected, now, is_tls=self._tls is not None, check_peer=check, peer=peer
        )
        self._numbers += 1
        self._connections[self._numbers] = connection
        self._selector.register(connected, connection.events, self._numbers)

    def _step(self, number: int, now: float) -> None:
        connection = self._connections[number]
        request = connection.step(now)
        if request is not None and not self._workers.take(number, request):
            busy = text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "no thread available")
            connection.answer(busy, now)
            connection.step(now)
        if connection.state == "closed":
            self._remove(number)
        elif connection.state == "working":
            # Further data of the client wait in the kernel.
            self._watch(connection, number, 0)
        else:
            self._watch(connection, number, connection.events)

    def _watch(self, connection: ExporterConnection, number: int, events: int) -> None:
        known = self._selector.get_map().get(connection.socket.fileno())
        if not events:
            if known is not None:
                self._selector.unregister(connection.socket)
        elif known is None:
            self._selector.register(connection.socket, events, number)
        elif known.events != events:
            self._selector.modify(connection.socket, events, number)

    def _remove(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._watch(connection, number, 0)
        connection.close()

    def _make_room(self, now: float, grace: float) -> None:
        """Evict the connection that has waited longest, if `_find_longest` finds one."""
        number = self._find_longest(now, grace)
        if number is not None:
            self._remove(number)

    def _find_longest(self, now: float, grace: float) -> int | None:
        """Return the connection that has waited longest; None if no connection qualifies.

        Idle connections qualify, others after `grace` seconds in their state, but never `working`.
        """
        waiting = [
            (connection.since, number)
            for number, connection in self._connections.items()
            if connection.state != "working"
            and (connection.is_idle or now - connection.since >= grace)
        ]
        return min(waiting)[1] if waiting else None

    def _close_late(self, now: float) -> None:
        for number, connection in [*self._connections.items()]:
            limit = _IDLE if connection.is_idle else self._seconds
            if connection.state != "working" and now - connection.since > limit:
                self._remove(number)

    def _end(self) -> None:
        for number in [*self._connections]:
            self._remove(number)
        for each in (*self._sockets, self._reader, self._writer):
            each.close()
        self._selector.close()
