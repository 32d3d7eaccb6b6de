"""Servers of every kind that flood whoever connects to them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import re
import socket
import struct
import threading
from typing import TYPE_CHECKING, NamedTuple

from tests.support.mqtt_broker import packet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SIZE = 256 * 1024
_ZEROS = bytes(_SIZE)


class Mode(NamedTuple):
    """A way to be hostile: a scheme of ours, what to say first, and what to send without end."""

    scheme: str
    greet: Callable[[socket.socket], None]
    flood: Callable[[], Iterable[bytes]]


class Flood:
    """A server that is hostile in one way, and counts the bytes that it could send."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.05)
        self.url = f"{mode.scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self.sent = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                connected, _ = self._listening.accept()
                with connected:
                    connected.settimeout(1)
                    self._mode.greet(connected)
                    self._pour(connected)

    def _pour(self, connected: socket.socket) -> None:
        for data in self._mode.flood():
            while not self._ended.is_set():
                # One that does not read us is not waited for: its own limit ends it.
                with contextlib.suppress(TimeoutError):
                    connected.sendall(data)
                    self.sent += len(data)
                    break
            if self._ended.is_set():
                return

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listening.close()


def repeated(begin: bytes, again: bytes = _ZEROS) -> Callable[[], Iterator[bytes]]:
    """Send something once, and then something else for ever, in large pieces."""
    piece = again * max(1, _SIZE // len(again))
    return lambda: itertools.chain([begin], itertools.repeat(piece))


def _numbered(form: bytes) -> Callable[[], Iterator[bytes]]:
    """Send lines for ever that all differ."""
    return lambda: (
        b"".join(form % number for number in range(begin, begin + 1000))
        for begin in itertools.count(0, 1000)
    )


def _nats_hello(connected: socket.socket) -> None:
    connected.sendall(b'INFO {"max_payload":1048576,"headers":true}\r\n')
    while b"PING" not in connected.recv(65536):
        pass
    connected.sendall(b"PONG\r\n")
    with contextlib.suppress(TimeoutError):
        connected.settimeout(0.2)
        connected.recv(65536)
    connected.settimeout(1)


def _mqtt_hello(connected: socket.socket) -> None:
    packet(connected)
    connected.sendall(b"\x20\x03\x00\x00\x00")
    packet(connected)


def _request(connected: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connected.recv(65536)
    return data


def _mqtt_login(connected: socket.socket) -> None:
    packet(connected)


def _head(connected: socket.socket) -> None:
    _request(connected)


def _http(connected: socket.socket) -> None:
    head, _, body = _request(connected).partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    size = int(found[1]) if found else 0
    while len(body) < size:
        body += connected.recv(65536)


def _websocket_hello(connected: socket.socket) -> None:
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", _request(connected))
    assert found
    digest = hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    connected.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
    )
    connected.recv(65536)


def _websocket_login(connected: socket.socket) -> None:
    _websocket_hello(connected)
    connected.sendall(b"\x82\x05\x20\x03\x00\x00\x00")
    connected.recv(65536)


def _kafka(connected: socket.socket) -> None:
    connected.recv(65536)


def _silent(_: socket.socket) -> None:
    """Send nothing first."""


_FRAME = b"\x82\x7f" + struct.pack("!Q", 2**60)
_OK = b"HTTP/1.1 200 OK\r\n"

MODES = {
    "nats: MSG of 9999999999 bytes": Mode("nats", _nats_hello, repeated(b"MSG x 1 9999999999\r\n")),
    "nats: HMSG of 9999999999 bytes": Mode(
        "nats", _nats_hello, repeated(b"HMSG x 1 12 9999999999\r\n")
    ),
    "nats: line without an end": Mode("nats", _nats_hello, repeated(b"+", b"x")),
    "nats: INFO without an end": Mode("nats", _silent, repeated(b"INFO {", b" ")),
    "nats: later INFO without an end": Mode("nats", _nats_hello, repeated(b"INFO {", b" ")),
    "nats: INFO of new servers": Mode(
        "nats", _nats_hello, _numbered(b'INFO {"connect_urls":["10.0.0.1:%d"]}\r\n')
    ),
    "nats: PING for ever": Mode("nats", _nats_hello, repeated(b"PING\r\n", b"PING\r\n")),
    "nats: empty messages for ever": Mode(
        "nats", _nats_hello, repeated(b"", b"MSG _INBOX.x.5000 1 0\r\n\r\n")
    ),
    "nats: errors for ever": Mode(
        "nats", _nats_hello, repeated(b"", b"-ERR 'permissions violation for publish'\r\n")
    ),
    "mqtt: PUBLISH of 256 MB": Mode("mqtt", _mqtt_hello, repeated(b"\x30\xff\xff\xff\x7f")),
    "mqtt: QoS 2 for ever": Mode(
        "mqtt",
        _mqtt_hello,
        lambda: (
            b"".join(b"\x34\x08\x00\x01a" + struct.pack("!H", n) + b"\x00xx" for n in range(65536))
            for _ in itertools.count()
        ),
    ),
    "mqtt: PUBREL for ever": Mode("mqtt", _mqtt_hello, repeated(b"", b"\x62\x02\x00\x01")),
    "mqtt: PUBREC for ever": Mode("mqtt", _mqtt_hello, repeated(b"", b"\x50\x02\x00\x01")),
    "mqtt: PINGREQ for ever": Mode("mqtt", _mqtt_hello, repeated(b"", b"\xc0\x00")),
    "mqtt: PINGRESP for ever": Mode("mqtt", _mqtt_hello, repeated(b"", b"\xd0\x00")),
    "mqtt: length without an end": Mode("mqtt", _mqtt_hello, repeated(b"\x40", b"\x80")),
    "mqtt: CONNACK of 256 MB": Mode("mqtt", _mqtt_login, repeated(b"\x20\xff\xff\xff\x7f")),
    "mqtt: DISCONNECT of 256 MB": Mode("mqtt", _mqtt_hello, repeated(b"\xe0\xff\xff\xff\x7f")),
    "ws: handshake without an end": Mode("ws", _head, repeated(b"H", b"x")),
    "ws: headers for ever": Mode(
        "ws", _head, repeated(b"HTTP/1.1 101 X\r\n", b"A: connection\r\n")
    ),
    "ws: frame of 2^60 bytes": Mode("ws", _websocket_hello, repeated(_FRAME)),
    "ws: PINGRESP in a frame of 2^60 bytes": Mode(
        "ws", _websocket_login, repeated(_FRAME, b"\xd0\x00")
    ),
    "ws: ping of 2^60 bytes": Mode(
        "ws", _websocket_login, repeated(b"\x89\x7f" + struct.pack("!Q", 2**60))
    ),
    "ws: pings for ever": Mode("ws", _websocket_login, repeated(b"", b"\x89\x7d" + bytes(125))),
    "http: status line without an end": Mode("http", _http, repeated(b"HTTP/1.1 200 ", b"x")),
    "http: header line without an end": Mode("http", _http, repeated(_OK + b"A: ", b"x")),
    "http: long header lines": Mode("http", _http, repeated(_OK, b"A: " + b"x" * 60_000 + b"\r\n")),
    "http: header lines for ever": Mode("http", _http, repeated(_OK, b"A: b\r\n")),
    "http: 100 Continue for ever": Mode(
        "http", _http, repeated(b"", b"HTTP/1.1 100 Continue\r\n\r\n")
    ),
    "http: body without an end": Mode("http", _http, repeated(_OK + b"\r\n", b"x")),
    "http: refusal without an end": Mode("http", _http, repeated(b"HTTP/1.1 500 No\r\n\r\n", b"x")),
    "http: body of 2^60 bytes": Mode(
        "http", _http, repeated(_OK + b"Content-Length: %d\r\n\r\n" % 2**60, b"x")
    ),
    "http: chunks for ever": Mode(
        "http", _http, repeated(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")
    ),
    "http: chunk of 2^60 bytes": Mode(
        "http", _http, repeated(_OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 2**60)
    ),
    "http: long chunk sizes": Mode(
        "http",
        _http,
        repeated(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 60_000 + b"\r\ny\r\n"),
    ),
    "http: trailer for ever": Mode(
        "http", _http, repeated(_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n")
    ),
    "http: compressed without being asked": Mode(
        "http", _http, repeated(_OK + b"Content-Encoding: gzip\r\n\r\n")
    ),
    "kafka: answer of 2^31 bytes": Mode("kafka", _kafka, repeated(struct.pack("!i", 2**31 - 1))),
    "kafka: answer of 8 MB": Mode(
        "kafka", _kafka, repeated(struct.pack("!iih", 7_999_000, 1, 35), b"\x01")
    ),
    "kafka: text for ever": Mode("kafka", _kafka, repeated(b"", b"HTTP/1.1 ")),
}
