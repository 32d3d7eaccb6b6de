"""The HTTP server: a thread for all connections, a few that build responses; stopped clients.

A client that is slow or stalls in its handshake occupies only a descriptor. The server runs across
reloads: a reload exchanges the listening sockets and the handler of requests, and no connection.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ccagent.exporter.http_connection import ExporterConnection
from ccagent.exporter.pages import text_answer
from ccagent.log import logger
from ccagent.net.urls import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.exporter.access import TlsContext
    from ccagent.exporter.pages import ExporterAnswer, Request


StopReason = Literal["evicted", "malformed", "refused", "slow"]

_TEXTS: dict[StopReason, str] = {
    "evicted": "connection closed for a client of another address: too many at once",
    "malformed": "request refused: malformed or too large",
    "refused": "connection refused: too many at once",
    "slow": "connection closed: slower than client-timeout",
}
_NAMED = 20
"""Maximum of addresses in the log per hour and reason. All others share a line."""
_PERIOD = 3600.0


class StoppedClients:
    """Counters of stopped clients, by reason.

    An address is named in the log once per hour and reason; the log counts its repetitions. Only
    the thread of the server writes.
    """

    def __init__(self) -> None:
        self._counts: dict[StopReason, int] = dict.fromkeys(get_args(StopReason), 0)
        self._named: set[tuple[StopReason, str]] = set()
        self._since = time.monotonic()

    def note(self, peer: str, reason: StopReason) -> None:
        """Count a stopped client and log it. peer: its address; "" for a local socket."""
        self._counts[reason] += 1
        now = time.monotonic()
        if now > self._since + _PERIOD:
            self._named.clear()
            self._since = now
        named = (reason, network(peer))
        if named not in self._named:
            if sum(each == reason for each, _ in self._named) >= _NAMED:
                logger.warning("exporter: further addresses: %s", _TEXTS[reason])
                return
            self._named.add(named)
        logger.warning("exporter: %s: %s", named[1] or "local socket", _TEXTS[reason])

    def rows(self) -> Iterator[tuple[tuple[str], int]]:
        """Return reason and count of stopped clients since the start."""
        for reason, count in self._counts.items():
            yield (reason,), count


_IDLE = 300.0
"""Seconds after which an idle connection is closed."""
_TICK = 1.0
_ACCEPTED_AT_ONCE = 64
_WORKERS = 4
_PAUSE = 0.5
_SHORT_PAUSE = 0.01
_CHANGED_WITHIN = 2.0
_GRACE = 0.25
"""Seconds before which a new client, or a client that is reading its response, is not evicted."""


class RequestHandler:
    """The handling of connections and requests between two reloads.

    answer: builds the response to a request, in a thread. end: called in a thread of its own after
    the last answer, when another handler has taken over. most: maximum of open connections.
    seconds: time limit for a client to send a request or to receive a response.
    """

    def __init__(
        self,
        answer: Callable[[Request], ExporterAnswer],
        end: Callable[[], None],
        *,
        tls: TlsContext | None = None,
        most: int = 40,
        seconds: float = 10.0,
    ) -> None:
        self.answer = answer
        self.tls = tls
        self.most = most
        self.seconds = seconds
        self.running = 0
        self._end = end

    def end(self) -> None:
        """Call `end` without waiting for it."""
        try:
            threading.Thread(target=self._end, name="exporter-end", daemon=True).start()
        except RuntimeError:
            self._end()


class _Change(NamedTuple):
    """A change by a reload. handler: None to end after the running answers."""

    handler: RequestHandler | None
    opened: Sequence[socket.socket]
    closed: Sequence[socket.socket]
    is_done: threading.Event


class AnswerWorkers:
    """Threads that build responses, started on demand."""

    def __init__(self, hand_back: Callable[[int, ExporterAnswer, RequestHandler], None]) -> None:
        self._hand_back = hand_back
        self._requests: queue.SimpleQueue[tuple[int, Request, RequestHandler] | None] = (
            queue.SimpleQueue()
        )
        self._count = 0
        self._busy = 0

    def take(self, number: int, request: Request, handler: RequestHandler) -> bool:
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
        handler.running += 1
        self._requests.put((number, request, handler))
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
            self._answer(*item)
            del item  # it refers to an exporter, which a reload may end meanwhile

    def _answer(self, number: int, request: Request, handler: RequestHandler) -> None:
        try:
            answer = handler.answer(request)
        except Exception:  # noqa: BLE001 - the thread must survive
            logger.exception("exporter: an answer failed")
            answer = text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "unforeseen error")
        self._hand_back(number, answer, handler)


class ExporterServer:
    """An HTTP server for listening sockets. It closes them at its end."""

    def __init__(self, handler: RequestHandler) -> None:
        self.stopped = StoppedClients()
        self._sockets: list[socket.socket] = []
        self.handler = handler
        self._is_finishing = False
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, ExporterConnection] = {}
        self._numbers = 0
        self._answers: queue.SimpleQueue[tuple[int, ExporterAnswer, RequestHandler]] = (
            queue.SimpleQueue()
        )
        self._reader, self._writer = socket.socketpair()
        self._closing = threading.Event()
        self._workers = AnswerWorkers(self._hand_back)
        for each in (self._reader, self._writer):
            each.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="exporter-http", daemon=True)

    def start(self) -> None:
        """Start to serve. Raise RuntimeError if no thread can be started."""
        self._selector.register(self._reader, selectors.EVENT_READ, None)
        self._thread.start()

    def change(
        self,
        handler: RequestHandler | None,
        opened: Sequence[socket.socket] = (),
        closed: Sequence[socket.socket] = (),
    ) -> None:
        """Take over a handler and sockets, then close other sockets. Running answers continue.

        handler: None to end after the running answers. The wait for the server's thread is short.
        """
        change = _Change(handler, opened, closed, threading.Event())
        self._changes.put(change)
        self._wake()
        if self._thread.is_alive():
            change.is_done.wait(_CHANGED_WITHIN)

    def close(self, seconds: float = 2.0) -> None:
        """Close the sockets and all connections. seconds: maximum wait for the thread."""
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _hand_back(self, number: int, answer: ExporterAnswer, handler: RequestHandler) -> None:
        self._answers.put((number, answer, handler))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes the thread anyway
            self._writer.send(b"x")

    def _serve(self) -> None:
        try:
            while not (self._closing.is_set() or self._is_finished()):
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
        while not self._changes.empty():
            self._apply(self._changes.get(), now)
        while not self._answers.empty():
            number, answer, handler = self._answers.get()
            self._workers.done()
            self._count_down(handler)
            connection = self._connections.get(number)
            if connection is not None:
                connection.answer(answer, now)
                self._step(number, now)
        self._close_late(now)

    def _apply(self, change: _Change, now: float) -> None:
        """Apply a change of a reload."""
        for each in change.opened:
            each.setblocking(False)
            self._sockets.append(each)
            self._selector.register(each, selectors.EVENT_READ, None)
        before, self._is_finishing = self.handler, change.handler is None
        if change.handler is not None:
            self.handler = change.handler
        for each in change.closed:
            # The kernel resets connections that wait to be accepted when their socket is closed.
            self._accept(each, now)
            self._sockets.remove(each)
            self._selector.unregister(each)
            each.close()
        if self.handler.tls is not before.tls or self._is_finishing:
            self._end_connections()
        if before is not self.handler and not before.running:
            before.end()
        change.is_done.set()

    def _count_down(self, handler: RequestHandler) -> None:
        handler.running -= 1
        if handler is not self.handler and not handler.running:
            handler.end()

    def _end_connections(self) -> None:
        """Close idle connections; others after their answer. New ones use the new certificate."""
        for number, connection in [*self._connections.items()]:
            if connection.is_idle:
                self._remove(number)
            else:
                connection.end_after_answer()

    def _is_finished(self) -> bool:
        return self._is_finishing and not self._connections

    def _accept(self, listening: object, now: float) -> None:
        assert isinstance(listening, socket.socket)  # noqa: S101 - registered so
        for _ in range(_ACCEPTED_AT_ONCE):
            is_full = len(self._connections) >= self.handler.most
            # Clients of several addresses share the connections; if all are of one address and
            # none may be evicted yet, further clients wait in the kernel's backlog.
            if is_full and len(self._count_peers()) < 2 and self._find_longest(now, _GRACE) is None:
                self._closing.wait(_SHORT_PAUSE)
                return
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example no free descriptor
                logger.warning("exporter: can't accept connections: %s", error)
                longest = self._find_longest(now, 0.0)
                if longest is not None:
                    self._stop(longest, "evicted")
                self._closing.wait(_PAUSE)
                return
            peer = "" if listening.family == socket.AF_UNIX else str(address[0])
            if is_full and not self._make_room_for(peer, now):
                self.stopped.note(peer, "refused")
                connected.close()
                continue
            self._add(connected, peer, now)

    def _make_room_for(self, peer: str, now: float) -> bool:
        """Evict a connection for a client. Return whether one could be evicted.

        The address with most connections loses one: after `_GRACE` to itself, at once to others.
        """
        counts = self._count_peers()
        most = max(counts, key=counts.__getitem__)
        if counts[network(peer)] < counts[most]:
            number = self._find_longest(now, 0.0, most)
        else:
            number = self._find_longest(now, _GRACE)
        if number is None:
            return False
        self._stop(number, "evicted")
        return True

    def _count_peers(self) -> Counter[str]:
        return Counter(network(each.peer) for each in self._connections.values())

    def _add(self, connected: socket.socket, peer: str, now: float) -> None:
        connected.setblocking(False)
        tls = self.handler.tls
        if tls is not None:
            try:
                connected = tls.wrap(connected)
            except (OSError, ValueError) as error:
                logger.warning("exporter: no TLS: %s", error)
                connected.close()
                return
        connection = ExporterConnection(connected, now, tls, peer)
        self._numbers += 1
        self._connections[self._numbers] = connection
        self._selector.register(connected, connection.events, self._numbers)

    def _step(self, number: int, now: float) -> None:
        connection = self._connections[number]
        request = connection.step(now)
        if connection.was_malformed:
            connection.was_malformed = False
            self.stopped.note(connection.peer, "malformed")
        if request is not None and not self._workers.take(number, request, self.handler):
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

    def _stop(self, number: int, reason: StopReason) -> None:
        """Close a connection for its client's fault; an idle one without notice."""
        connection = self._connections[number]
        if not connection.is_idle:
            self.stopped.note(connection.peer, reason)
        self._remove(number)

    def _find_longest(self, now: float, grace: float, peer: str | None = None) -> int | None:
        """Return the connection that has waited longest; None if no connection qualifies.

        Idle connections qualify, others after `grace` seconds in their state, but never `working`.
        peer: only connections of this client.
        """
        waiting = [
            (connection.since, number)
            for number, connection in self._connections.items()
            if connection.state != "working"
            and (connection.is_idle or now - connection.since >= grace)
            and peer in {None, network(connection.peer)}
        ]
        return min(waiting)[1] if waiting else None

    def _close_late(self, now: float) -> None:
        for number, connection in [*self._connections.items()]:
            limit = _IDLE if connection.is_idle else self.handler.seconds
            if connection.state != "working" and now - connection.since > limit:
                self._stop(number, "slow")

    def _end(self) -> None:
        for number in [*self._connections]:
            self._remove(number)
        while not self._changes.empty():
            change = self._changes.get()
            self._sockets += change.opened
            change.is_done.set()
        for each in (*self._sockets, self._reader, self._writer):
            each.close()
        self._selector.close()
        self._workers.close()
        self.handler.end()
