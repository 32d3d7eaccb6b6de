"""The HTTP server: one thread accepts connections, and each connection has a thread.

The protocol is that of the standard library: the core package has no other HTTP server. A slow
client occupies a thread and a descriptor, and is ended after a time. The server runs across
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
from typing import TYPE_CHECKING, NamedTuple, cast

from ccagent.exporter.http_connection import Client, Connection, StoppedClients
from ccagent.exporter.pages import ExporterAnswer, Request, text_answer
from ccagent.log import logger
from ccagent.net.urls import network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.exporter.http_connection import StopReason
    from ccagent.exporter.tls import TlsContext

_IDLE = 300.0
"""Seconds after which an idle connection is closed."""
_TICK = 1.0
_ACCEPTED_AT_ONCE = 64
_PAUSE = 0.5
_SHORT_PAUSE = 0.01
_CHANGED_WITHIN = 2.0
_GRACE = 0.25
"""Seconds before which a new client, or a client that is reading its response, is not evicted."""


class RequestHandler:
    """The handling of connections and requests between two reloads.

    answer: builds the response to a request. end: called in a thread of its own after the last
    answer, when another handler has taken over. most: maximum of open connections. seconds: time
    limit for a client to send a request or to receive a response.
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


class ExporterServer:
    """An HTTP server for listening sockets. It closes them at its end."""

    def __init__(self, handler: RequestHandler) -> None:
        self.stopped = StoppedClients()
        self.handler = handler
        self._sockets: list[socket.socket] = []
        self._is_finishing = False
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._clients: set[Client] = set()
        self._lock = threading.Lock()
        self._reader, self._writer = socket.socketpair()
        for each in (self._reader, self._writer):
            each.setblocking(False)
        self._closing = threading.Event()
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

    def answer(self, request: Request) -> ExporterAnswer:
        """Return the present handler's response to a request."""
        with self._lock:
            handler = self.handler
            handler.running += 1
        try:
            return handler.answer(request)
        except Exception:  # noqa: BLE001 - the client gets an answer
            logger.exception("exporter: an answer failed")
            return text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "unforeseen error")
        finally:
            with self._lock:
                handler.running -= 1
                is_over = handler is not self.handler and not handler.running
            if is_over:
                handler.end()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes the thread anyway
            self._writer.send(b"x")

    def _serve(self) -> None:
        try:
            while not (self._closing.is_set() or (self._is_finishing and not self._clients)):
                try:
                    self._turn()
                except Exception:  # noqa: BLE001 - no client may end the server
                    logger.exception("exporter: unforeseen error in the server; continuing")
                    self._closing.wait(_PAUSE)
        finally:
            self._end()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK):
            if key.fileobj is self._reader:
                with contextlib.suppress(OSError):
                    self._reader.recv(4096)
            else:
                self._accept(cast("socket.socket", key.fileobj))
        while not self._changes.empty():
            self._apply(self._changes.get())
        now = time.monotonic()
        for client in self._list():
            limit = _IDLE if client.state == "idle" else self.handler.seconds
            if client.state != "working" and now - client.since > limit:
                self._stop(client, "slow")

    def _list(self) -> list[Client]:
        with self._lock:
            return [*self._clients]

    def _apply(self, change: _Change) -> None:
        """Apply a change of a reload."""
        for each in change.opened:
            each.setblocking(False)
            self._sockets.append(each)
            self._selector.register(each, selectors.EVENT_READ, None)
        with self._lock:
            before, self._is_finishing = self.handler, change.handler is None
            if change.handler is not None:
                self.handler = change.handler
            is_over = before is not self.handler and not before.running
        for each in change.closed:
            # The kernel resets connections that wait to be accepted when their socket is closed.
            self._accept(each)
            self._sockets.remove(each)
            self._selector.unregister(each)
            each.close()
        if self.handler.tls is not before.tls or self._is_finishing:
            # Idle connections end now, others after their answer.
            for client in self._list():
                client.is_last = True
                if client.state == "idle":
                    client.stop()
        if is_over:
            before.end()
        change.is_done.set()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            is_full = len(self._clients) >= self.handler.most
            # Clients of several addresses share the connections; if all are of one address and
            # none may be evicted yet, further clients wait in the kernel's backlog.
            if is_full and len(self._count_peers()) < 2 and self._find_longest(_GRACE) is None:
                self._closing.wait(_SHORT_PAUSE)
                return
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example no free descriptor
                logger.warning("exporter: can't accept connections: %s", error)
                self._evict(self._find_longest(0.0))
                self._closing.wait(_PAUSE)
                return
            peer = "" if listening.family == socket.AF_UNIX else str(address[0])
            if is_full and not self._evict(self._find_victim(peer)):
                self.stopped.note(peer, "refused")
                connected.close()
                continue
            self._begin(connected, peer)

    def _find_victim(self, peer: str) -> Client | None:
        """Return the connection to evict for a client; None if no connection qualifies.

        The address with most connections loses one: after `_GRACE` to itself, at once to others.
        """
        counts = self._count_peers()
        most = max(counts, key=counts.__getitem__, default="")
        if counts[network(peer)] < counts[most]:
            return self._find_longest(0.0, most)
        return self._find_longest(_GRACE)

    def _count_peers(self) -> Counter[str]:
        return Counter(network(client.peer) for client in self._list())

    def _find_longest(self, grace: float, peer: str | None = None) -> Client | None:
        """Return the connection that has waited longest; None if no connection qualifies.

        Idle connections qualify, others after `grace` seconds in their state, but never `working`.
        peer: only connections of this client.
        """
        now = time.monotonic()
        waiting = [
            client
            for client in self._list()
            if client.state != "working"
            and (client.state == "idle" or now - client.since >= grace)
            and peer in {None, network(client.peer)}
        ]
        return min(waiting, key=lambda client: client.since, default=None)

    def _evict(self, client: Client | None) -> bool:
        """Evict a connection. Return whether there is one."""
        if client is not None:
            self._stop(client, "evicted")
        return client is not None

    def _stop(self, client: Client, reason: StopReason) -> None:
        """End a connection for its client's fault; an idle one without notice."""
        if client.state != "idle":
            self.stopped.note(client.peer, reason)
        self._forget(client)
        client.stop()

    def _forget(self, client: Client) -> None:
        with self._lock:
            self._clients.discard(client)

    def _begin(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(True)
        tls = self.handler.tls
        client = Client(connected, peer, is_tls=tls is not None)
        with self._lock:
            self._clients.add(client)
        try:
            threading.Thread(
                target=self._run, args=(client, tls), name="exporter-client", daemon=True
            ).start()
        except RuntimeError as error:
            logger.warning("exporter: no thread for a connection: %s", error)
            self._forget(client)
            connected.close()

    def _run(self, client: Client, tls: TlsContext | None) -> None:
        """Serve a connection in its thread until it ends."""
        try:
            if tls is not None:
                client.socket = wrapped = tls.wrap(client.socket)
                wrapped.do_handshake()
                if not tls.accepts(wrapped):
                    return
                client.enter("reading")
            Connection(client, self.stopped, self.answer)
        except (OSError, ValueError):  # the client or the server ended it
            pass
        except Exception:  # noqa: BLE001 - its end must be noted
            logger.exception("exporter: unforeseen error of a connection")
        finally:
            self._forget(client)
            client.socket.close()
            if self._is_finishing:
                self._wake()

    def _end(self) -> None:
        for client in self._list():
            client.stop()
        while not self._changes.empty():
            change = self._changes.get()
            self._sockets += change.opened
            change.is_done.set()
        for each in (*self._sockets, self._reader, self._writer):
            each.close()
        self._selector.close()
        self.handler.end()
