"""A client of paho-mqtt with limits, and with workarounds for its defects."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from paho.mqtt import client as paho
from paho.mqtt import properties
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from paho.mqtt.enums import MQTTErrorCode

Properties = cast("Any", properties.Properties)

REFUSED = 0x80
"""Reason codes from this value on are refusals."""

_KEEP_ALIVE = 60
_SESSION_SECONDS = 86400
_LARGEST_INCOMING = 64 * 1024
"""Maximum bytes of one packet, WebSocket frame or handshake. Expected ones have few bytes."""

_LONGEST_LENGTH = 4
"""Maximum bytes of a packet's length field (MQTT 5, section 1.5.5)."""

_ANSWERS = (paho.PUBACK, paho.PUBREC, paho.PUBCOMP)
_BEFORE_LOGIN = frozenset({int(paho.CONNACK)})
AFTER_LOGIN = frozenset({*map(int, _ANSWERS), int(paho.PINGRESP), int(paho.DISCONNECT)})
"""Types of packets that a broker may send to a client without subscriptions."""


class UnwantedPacketError(OSError):
    """The broker has sent an unexpected or too large packet.

    It is an OSError, because paho ends the connection after an OSError.
    """


class MqttOptions(NamedTuple):
    """Address, login and limits of a connection."""

    host: str
    port: int
    path: str
    """Path of the WebSocket; empty: plain TCP."""
    context: ssl.SSLContext | None
    protocol: str
    qos: int
    client_id: str
    user: str
    password: str
    status_topic: str
    retains: bool
    """True if the broker must retain some messages."""
    seconds: float
    """The time limit for any answer in seconds."""
    is_passing: bool = False
    """True if the broker must discard the session at the end of the connection."""


class _LimitedHandshake:
    """Limits the number of bytes read during a WebSocket's handshake."""

    left: int | None = _LARGEST_INCOMING
    """Remaining bytes for the handshake; None after it."""

    def count(self, size: int) -> None:
        """Count bytes. Raise UnwantedPacketError if the handshake is too long."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise UnwantedPacketError("the answer to the WebSocket handshake has no end")


class _WholeFrameSocket(socket.socket, _LimitedHandshake):
    """Sends data completely or not at all: paho loses a WebSocket frame that is sent in parts.

    Python's SSLSocket already does this.
    """

    seconds = 0.0
    """The time limit in seconds for the broker to accept more data."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        self.count(bufsize)
        return super().recv(bufsize, flags)

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        view = memoryview(data)
        sent = super().send(view, flags)
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        while sent < len(view):
            if not poll.poll(self.seconds * 1000):
                raise TimeoutError("timed out")
            with contextlib.suppress(BlockingIOError):
                sent += super().send(view[sent:], flags)
        return sent


class _LimitedTlsSocket(ssl.SSLSocket, _LimitedHandshake):
    """A TLS socket with a limit for the handshake."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        self.count(buflen)
        return super().recv(buflen, flags)


class MqttClient(paho.Client):
    """Keeps each refusal, reads only answers, and closes all sockets after a failure.

    The members with an underscore are not public, but identical in paho-mqtt 2.0, 2.1 and 2.2.
    """

    opened: socket.socket | None = None
    """The socket below TLS and WebSocket; None before the connection."""
    context: ssl.SSLContext
    refusals: dict[int, int]
    """Reason codes of refused messages by their packet identifiers."""
    received: set[bytes]
    """Packet identifiers of QoS 2 whose PUBREC was received."""
    wanted = _BEFORE_LOGIN
    """Types of packets that the broker may send next."""

    def shake_hands(self, options: MqttOptions) -> None:
        """Connect and send CONNECT. Raise OSError or, for WebSocket, ValueError, IndexError."""
        # paho has a time limit per byte of a WebSocket's handshake. This limit is for all bytes.
        is_late = threading.Event()

        def expire() -> None:
            is_late.set()
            if self.opened is not None:
                # SSLSocket.shutdown would remove TLS while the other thread uses it.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self.opened, socket.SHUT_RDWR)

        timer = threading.Timer(options.seconds, expire)
        timer.start()
        try:
            if options.protocol == "5":
                session = Properties(PacketTypes.CONNECT)
                session.SessionExpiryInterval = 0 if options.is_passing else _SESSION_SECONDS
                session.MaximumPacketSize = _LARGEST_INCOMING
                clean = options.qos == 2 or options.is_passing
                self.connect(
                    options.host, options.port, _KEEP_ALIVE, clean_start=clean, properties=session
                )
            else:
                self.connect(options.host, options.port, _KEEP_ALIVE)
        except (OSError, ValueError, IndexError):
            if is_late.is_set():
                raise TimeoutError from None  # the socket was closed while it was read
            raise
        else:
            if isinstance(self.opened, _WholeFrameSocket | _LimitedTlsSocket):
                self.opened.left = None
        finally:
            timer.cancel()
            timer.join()

    def _create_socket_connection(self) -> socket.socket:
        self.opened = super()._create_socket_connection()
        if self.transport == "websockets":
            whole = _WholeFrameSocket(fileno=self.opened.detach())
            whole.seconds = self.connect_timeout
            whole.settimeout(self.connect_timeout)
            self.opened = whole
        # Otherwise the last messages of a batch are delayed by TCP's delayed acknowledgement.
        self.opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.opened

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        # Unlike paho, close the socket when the handshake fails.
        wrapped = self.context.wrap_socket(tcp_sock, server_hostname=self.host)
        self.opened = wrapped
        return wrapped

    def _sock_recv(self, bufsize: int) -> bytes:
        packet: Any = self._in_packet
        if packet["command"]:
            self._check(packet)
        try:
            return super()._sock_recv(bufsize)
        finally:
            # paho buffers a WebSocket frame until its end.
            if len(getattr(self._sock, "_readbuffer", b"")) > _LARGEST_INCOMING:
                raise UnwantedPacketError(
                    f"the broker sends a frame of more than {_LARGEST_INCOMING} bytes"
                )

    def _check(self, packet: Any) -> None:
        """Raise UnwantedPacketError before reading an unexpected or too large packet."""
        kind = packet["command"] & 0xF0
        if kind not in self.wanted:
            if kind == paho.PUBLISH and self.wanted is AFTER_LOGIN:
                raise UnwantedPacketError(
                    "the broker sends messages that were not asked for: another program may have"
                    " subscribed under the same client-id"
                )
            raise UnwantedPacketError(f"the broker sends an unexpected packet of type {kind >> 4}")
        if packet["remaining_length"] > _LARGEST_INCOMING:
            raise UnwantedPacketError(
                f"the broker sends a packet of more than {_LARGEST_INCOMING} bytes"
            )
        if not packet["have_remaining"] and len(packet["remaining_count"]) >= _LONGEST_LENGTH:
            raise UnwantedPacketError("the broker sends a packet whose length has no end")

    def _packet_handle(self) -> MQTTErrorCode:
        # paho ignores the refusal in a PUBREC. It treats mosquitto's PUBACK with the reason "packet
        # too large" as malformed.
        packet: Any = self._in_packet
        content = packet["packet"]
        if len(content) > 2 and content[2] >= REFUSED and packet["command"] & 0xF0 in _ANSWERS:
            self.refusals[int.from_bytes(content[:2], "big")] = content[2]
            packet.update(command=paho.PUBCOMP, packet=content[:2], remaining_length=2)
        if packet["command"] & 0xF0 == paho.PUBREC:
            # paho answers each repetition.
            if bytes(content[:2]) in self.received:
                raise UnwantedPacketError("the broker repeats an acknowledgement again and again")
            self.received.add(bytes(content[:2]))
        elif packet["command"] & 0xF0 == paho.PUBCOMP:
            self.received.discard(bytes(content[:2]))
        return super()._packet_handle()


C = TypeVar("C", bound=MqttClient)


class ErrorKeeper(logging.Logger):
    """A logger that keeps paho's last error: the reason for the end of a connection."""

    last: Exception | None = None

    def __init__(self) -> None:
        super().__init__("paho", logging.ERROR)

    def handle(self, record: logging.LogRecord) -> None:
        """Keep the error of a record."""
        last = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        if isinstance(last, Exception):
            self.last = last


def make_client(options: MqttOptions, heard: ErrorKeeper, kind: type[C]) -> C:
    """Return an unconnected client of a class."""
    is_5 = options.protocol == "5"
    # At QoS 2 a client without its old packet identifiers must not resume a session: the broker
    # would regard a new message as a repetition of an old one.
    clean = options.qos == 2 or options.is_passing
    client = kind(
        CallbackAPIVersion.VERSION2,
        options.client_id,
        clean_session=None if is_5 else clean,
        protocol=paho.MQTTv5 if is_5 else paho.MQTTv311,
        transport="websockets" if options.path else "tcp",
        reconnect_on_failure=False,
    )
    client.enable_logger(heard)
    client.max_inflight_messages_set(0)  # the connection limits their number
    client.connect_timeout = options.seconds
    client.refusals = {}
    client.received = set()
    if options.path:
        client.ws_set_options(options.path)
    if options.context is not None:
        client.context = options.context
        if options.path:
            options.context.sslsocket_class = _LimitedTlsSocket
        cast("Any", client).tls_set_context(options.context)
    if options.user:
        client.username_pw_set(options.user, options.password)
    if options.status_topic:
        client.will_set(options.status_topic, b"offline", qos=min(options.qos, 1), retain=True)
    return client
