"""Requests over a Unix socket, and the size of answers."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ccagent.net.http_client import HttpConnection

BODY = b"x" * 300_000


class Handler(BaseHTTPRequestHandler):
    """Answers once with a large body, and closes a kept connection after it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)
        self.close_connection = self.path == "/last"

    def address_string(self) -> str:
        return "a client at a socket"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
        """Log nothing."""


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """Serves until it is shut down; a client that stops reading is no error."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing."""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    place = str(tmp_path / "socket")
    with UnixServer(place, Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield place
        server.shutdown()
        serving.join()


def test_a_large_document_over_a_unix_socket(path: str) -> None:
    with closing(HttpConnection(path, None, 10, largest=1_000_000)) as connection:
        for place in ("/first", "/last", "/after-the-end"):
            answer = connection.get(place, {})
            assert (answer.status, answer.body) == (200, BODY)


def test_a_document_is_read_up_to_the_limit(path: str) -> None:
    with closing(HttpConnection(path, None, 10, largest=100_000)) as connection:
        assert connection.get("/", {}).body == BODY[:100_000]
    with closing(HttpConnection(path, None, 10)) as connection:
        assert len(connection.get("/", {}).body) == 64 * 1024


def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    connection = HttpConnection(str(tmp_path / "none"), None, 10)
    with pytest.raises(FileNotFoundError) as caught:
        connection.get("/", {})
    assert connection.explain(caught.value) == "No such file or directory"
