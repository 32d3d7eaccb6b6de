"""A real HTTP server that answers as it is told to."""

from __future__ import annotations

import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

PASSWORD = "correct horse: battery/staple"


class Request(NamedTuple):
    """What the server got."""

    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]


class Server(ThreadingHTTPServer):
    """Answers each request with the next step of its script, 204 when there is none."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[Request] = []
        self.script: deque[int | Callable[[Handler], None]] = deque()
        self.closed = threading.Event()
        self._context = context
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._context is None:
            super().finish_request(request, client_address)
            return
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Plays one step of the script."""

    protocol_version = "HTTP/1.1"

    @property
    def owner(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_POST(self) -> None:
        step = self.owner.script.popleft() if self.owner.script else 204
        if step is refuse_unread:
            refuse_unread(self)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        host, port = self.client_address[:2]
        self.owner.requests.append(
            Request(self.path, dict(self.headers.items()), body, (str(host), port))
        )
        if isinstance(step, int):
            say(step)(self)
        else:
            step(self)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base
        """Send nothing."""


def say(status: int, text: bytes = b"", **headers: str) -> Callable[[Handler], None]:
    def play(handler: Handler) -> None:
        handler.send_response(status)
        if status != 204:
            handler.send_header("Content-Length", str(len(text)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text)

    return play


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def answer_and_hang_up(handler: Handler) -> None:
    """Close a connection that was promised to be kept, as servers do after a while."""
    handler.owner.closed.clear()
    say(204)(handler)
    handler.close_connection = True


def never(handler: Handler) -> None:
    handler.rfile.read(1)
    handler.close_connection = True


def drip(handler: Handler) -> None:
    handler.close_connection = True
    for byte in b"HTTP/1.1 204 No Content\r\nX-Slow: " + b"x" * 100:
        handler.wfile.write(bytes([byte]))
        time.sleep(0.02)


def raw(text: bytes) -> Callable[[Handler], None]:
    def play(handler: Handler) -> None:
        handler.wfile.write(text)
        handler.close_connection = True

    return play


def echo_everything(handler: Handler) -> None:
    say(403, str(handler.headers).encode() + PASSWORD.encode())(handler)


def refuse_unread(handler: Handler) -> None:
    say(413, b"too large", Connection="close")(handler)
    handler.close_connection = True
