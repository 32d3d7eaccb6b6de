"""The client of paho-mqtt with limits, and with workarounds for its defects."""
# ruff: noqa: E402 - a module is deferred before paho is imported

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast


def defer(name: str) -> None:
    """Have a module of a package loaded at the first use of one of its names."""
    if name in sys.modules:
        return
    package, _, last = name.rpartition(".")
    placeholder = ModuleType(name)

    def load(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is placeholder:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    vars(placeholder)["__getattr__"] = load  # PEP 562
    setattr(import_module(package), last, placeholder)
    sys.modules[name] = placeholder


# paho needs it for proxies of PySocks only. With HTTP and email it takes 1.6 MiB.
defer("urllib.request")
# isort: split
from paho.mqtt import client as paho
from paho.mqtt import properties
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from ccagent.config.secret import read_secret
from ccagent.net.error_texts import explain_network_error
from ccagent.net.mqtt_broker import (
    ENCRYPTED,
    FIRST_NUMBERED,
    PORTS,
    REFUSED,
    WEBSOCKETS,
    NumberedReply,
)
from ccagent.net.tls import make_tls_context
from ccagent.net.urls import split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

    from ccagent.net.mqtt_broker import MqttOptions

KEEP_ALIVE = 60
_SESSION_SECONDS = 86400
_LARGEST_INCOMING = 64 * 1024
"""Maximum bytes of one packet, WebSocket frame or handshake. Expected ones have few bytes."""

_LONGEST_LENGTH = 4
"""Maximum bytes of a packet's length field (MQTT 5, section 1.5.5)."""

_ANSWERS = frozenset(map(int, (paho.PUBACK, paho.PUBREC, paho.PUBCOMP)))
_BEFORE_LOGIN = frozenset({int(paho.CONNACK)})
AFTER_LOGIN = _ANSWERS | {int(paho.PINGRESP), int(paho.DISCONNECT)}
"""Types of packets that a broker may send to a client without subscriptions."""
WITH_SUBSCRIPTIONS = AFTER_LOGIN | {int(paho.PUBLISH), int(paho.SUBACK), int(paho.UNSUBACK)}
_Properties = cast("Any", properties.Properties)


class UnwantedPacketError(OSError):
    """The broker has sent an unexpected or too large packet.

    It is an OSError, because paho ends the connection after an OSError.
    """


class _FrameStream:
    """The socket below a WebSocket, with a limit for the handshake.

    It sends data completely or not at all: paho loses a frame that is sent in parts.
    """

    def __init__(self, stream: socket.socket, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self.left: int | None = _LARGEST_INCOMING
        """Remaining bytes for the handshake; None after it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def recv(self, size: int) -> bytes:
        """Receive data. Raise UnwantedPacketError if the handshake is too long."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise UnwantedPacketError("the answer to the WebSocket handshake has no end")
        return self._stream.recv(size)

    def send(self, data: ReadableBuffer) -> int:
        """Send all data. Raise TimeoutError if the broker accepts no more of it for too long."""
        view = memoryview(data)
        sent = self._stream.send(view)
        poll = select.poll()
        poll.register(self._stream, select.POLLOUT)
        while sent < len(view):
            if not poll.poll(self._seconds * 1000):
                raise TimeoutError("timed out")
            with contextlib.suppress(BlockingIOError):
                sent += self._stream.send(view[sent:])
        return sent


class MqttClient(paho.Client):
    """Keeps each refusal, reads only expected packets, and closes all sockets after a failure.

    The members with an underscore are not public, but identical in paho-mqtt 2.0, 2.1 and 2.2.
    """

    def __init__(self, options: MqttOptions) -> None:
        self.options = options
        self.last_error: Exception | None = None
        """The last error that paho logged: the reason for the end of the connection."""
        self.opened: socket.socket | None = None
        """The socket below TLS and WebSocket; None before the connection."""
        self._frames: _FrameStream | None = None
        self.refusals: dict[int, int] = {}
        """Reason codes of refused messages by their packet identifiers."""
        self.received: set[bytes] = set()
        """Packet identifiers of QoS 2 whose PUBREC was received."""
        self.wanted = _BEFORE_LOGIN
        """Types of packets that the broker may send next."""
        self.on_reply: Callable[[NumberedReply], None] | None = None
        settings, target = options.settings, split_url(options.settings.url)
        self.address = target.hostname or "", target.port or PORTS[target.scheme]
        self.path = ""
        """Path of the WebSocket; empty: plain TCP."""
        if target.scheme in WEBSOCKETS:
            self.path = f"{target.path or '/mqtt'}{'?' if target.query else ''}{target.query}"
        self.is_5 = settings.protocol == "5"
        self._named = _Properties(PacketTypes.PUBLISH)
        # At QoS 2 a client without its old packet identifiers must not resume a session: the broker
        # would regard a new message as a repetition of an old one.
        self.is_clean = options.qos == 2 or options.is_passing
        super().__init__(
            CallbackAPIVersion.VERSION2,
            options.client_id,
            clean_session=None if self.is_5 else self.is_clean,
            protocol=paho.MQTTv5 if self.is_5 else paho.MQTTv311,
            transport="websockets" if self.path else "tcp",
            reconnect_on_failure=False,
        )
        self.max_inflight_messages_set(0)  # the connection limits their number
        self.context = make_tls_context(settings) if target.scheme in ENCRYPTED else None
        self.connect_timeout = settings.time_limit.seconds
        if self.path:
            self.ws_set_options(self.path)
        if self.context is not None:
            cast("Any", self).tls_set_context(self.context)
        if settings.user:
            self.username_pw_set(settings.user, read_secret(settings.password_file))
        if options.will is not None:
            self.will_set(*options.will)

    def shake_hands(self) -> None:
        """Connect and send CONNECT. Raise OSError or, for WebSocket, ValueError, IndexError."""
        # paho has a time limit per byte of a WebSocket's handshake. This limit is for all bytes.
        is_late = threading.Event()

        def expire() -> None:
            is_late.set()
            if self.opened is not None:
                # SSLSocket.shutdown would remove TLS while the other thread uses it.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self.opened, socket.SHUT_RDWR)

        more: dict[str, Any] = {}
        if self.is_5:
            session = _Properties(PacketTypes.CONNECT)
            session.SessionExpiryInterval = 0 if self.options.is_passing else _SESSION_SECONDS
            session.MaximumPacketSize = _LARGEST_INCOMING
            more = {"clean_start": self.is_clean, "properties": session}
        timer = threading.Timer(self.connect_timeout, expire)
        timer.start()
        try:
            self.connect(*self.address, KEEP_ALIVE, **more)
        except (OSError, ValueError, IndexError):
            if is_late.is_set():
                raise TimeoutError from None  # the socket was closed while it was read
            raise
        finally:
            timer.cancel()
            timer.join()
        if self._frames is not None:
            self._frames.left = None

    def publish_named(
        self, topic: str, payload: bytes, qos: int, name: str, *, retain: bool
    ) -> paho.MQTTMessageInfo:
        """Publish a message, with MQTT 5 with the user property `id` unless `name` is empty."""
        if not name or not self.is_5:
            return self.publish(topic, payload, qos, retain)
        # Shared, because creating one takes longer than sending a message.
        self._named.clear()
        self._named.UserProperty = ("id", name)
        return self.publish(topic, payload, qos, retain, self._named)

    def subscribe_once(self, filters: list[str]) -> int | None:
        """Subscribe at QoS 1; return the number of the request, None if it was not sent."""
        # Receive retained messages once, not with each connection.
        once = SubscribeOptions(1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        options: Any = once if self.is_5 else 1
        return self.subscribe([(each, options) for each in filters])[1]

    def publish_numbered(
        self, number: int, topic: str, payload: bytes, qos: int, *, repeats: bool
    ) -> MQTTErrorCode:
        """Send a message with this packet identifier, outside of paho's bookkeeping."""
        return self._send_publish(number, topic.encode(), payload, qos, retain=False, dup=repeats)

    def release(self, number: int) -> MQTTErrorCode:
        """Send PUBREL: the broker then delivers the message."""
        return self._send_pubrel(number)

    def explain(self, error: Exception) -> str:
        """Return the reason for a failed connection."""
        if isinstance(error, UnwantedPacketError):
            return str(error)
        closed = (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)
        if self.context is not None and isinstance(error, closed):
            error = ssl.SSLEOFError()
        if sentence := explain_network_error(error, self.connect_timeout):
            return sentence
        if isinstance(error, paho.WebsocketConnectionError | ValueError | IndexError):
            return f"no WebSocket for MQTT at {self.path}"
        return getattr(error, "strerror", None) or str(error) or type(error).__name__

    def _easy_log(self, level: int, fmt: str, *args: Any) -> None:  # noqa: ARG002
        if level == paho.MQTT_LOG_ERR and args and isinstance(args[-1], Exception):
            self.last_error = args[-1]

    def _mid_generate(self) -> int:
        with self._mid_generate_mutex:
            self._last_mid = self._last_mid % (FIRST_NUMBERED - 1) + 1
            return self._last_mid

    def _create_socket_connection(self) -> socket.socket:
        self.opened = super()._create_socket_connection()
        # Otherwise the last messages of a batch are delayed by TCP's delayed acknowledgement.
        self.opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.opened if self.context is not None else self._limit(self.opened)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        # Unlike paho, close the socket when the handshake fails.
        context = cast("ssl.SSLContext", self.context)
        self.opened = context.wrap_socket(tcp_sock, server_hostname=self.host)
        return cast("ssl.SSLSocket", self._limit(self.opened))

    def _limit(self, stream: socket.socket) -> Any:
        """Return the socket for paho to use."""
        if self.path:
            self._frames = _FrameStream(stream, self.connect_timeout)
        return self._frames or stream

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
        packet: Any = self._in_packet
        kind, content = packet["command"] & 0xF0, bytes(packet["packet"])
        if kind not in _ANSWERS:
            return super()._packet_handle()
        number = int.from_bytes(content[:2], "big")
        reason = content[2] if len(content) > 2 else 0
        if self.on_reply is not None and number >= FIRST_NUMBERED:
            is_released = kind == paho.PUBREC and reason < REFUSED
            self.on_reply(NumberedReply(number, is_released, reason))
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        # paho ignores the refusal in a PUBREC. It treats mosquitto's PUBACK with the reason "packet
        # too large" as malformed.
        if reason >= REFUSED:
            self.refusals[number] = reason
            packet.update(command=paho.PUBCOMP, packet=content[:2], remaining_length=2)
            kind = int(paho.PUBCOMP)
        if kind == paho.PUBREC:
            # paho answers each repetition.
            if content[:2] in self.received:
                raise UnwantedPacketError("the broker repeats an acknowledgement again and again")
            self.received.add(content[:2])
        elif kind == paho.PUBCOMP:
            self.received.discard(content[:2])
        return super()._packet_handle()
