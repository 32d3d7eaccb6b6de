"""One connection to an MQTT broker: messages, and the broker's answer to each.

A failed connection is not reused. The next connection has a new client: the library must not keep
messages that the queue sends again. The sending thread also reads. Between two calls a thread of
the connection keeps it alive.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes

from ccagent.transports.mqtt.client import (
    AFTER_LOGIN,
    REFUSED,
    ErrorKeeper,
    MqttClient,
    Properties,
    UnwantedPacketError,
    make_client,
)
from ccagent.transports.mqtt.reasons import (
    DUE_TO_MESSAGE,
    explain_ended_connection,
    explain_no_connection,
    explain_refused_connection,
)

if TYPE_CHECKING:
    from paho.mqtt import client as paho
    from paho.mqtt.reasoncodes import ReasonCode

    from ccagent.transports.mqtt.client import MqttOptions

_LARGEST_PACKET = 268_435_460
_BYTES_IN_FLIGHT = 1024 * 1024
_IN_FLIGHT = 100
_IN_FLIGHT_UNLIMITED = 20
"""Messages of QoS 2 in flight that any MQTT 3.1.1 broker accepts. The protocol has no limit."""

_LONGEST_ID = 64
_LONGEST_KIND = 64
_LAST_WORDS = 1.0
_SHORTEST_KEEP_ALIVE = 0.25
_USUAL_KEEP_ALIVE = 60.0
_STATUS = -1
_CLOSED = "the broker closed the connection"


class MqttLostError(Exception):
    """The connection failed or ended, or no answer arrived within the time limit."""

    def __init__(self, reason: str, *, is_closed: bool = False, code: int = 0) -> None:
        super().__init__(reason)
        self.is_closed = is_closed
        """True if the broker closed a working connection without another reason.

        A message may be the cause.
        """
        self.code = code
        """The reason code of the broker's DISCONNECT; 0 if it gave none."""


class MqttConnection:
    """Publishes with a bounded number of messages in flight, and keeps each answer."""

    def __init__(self, options: MqttOptions) -> None:
        """Connect. Raise MqttLostError if that fails."""
        self.results: dict[int, int] = {}
        """Reason codes by the key of a message; below REFUSED: accepted."""
        self.has_refused = False
        """True when a message was refused."""
        self.largest_packet = _LARGEST_PACKET
        self._options = options
        self._is_5 = options.protocol == "5"
        self._window = _IN_FLIGHT if self._is_5 or options.qos < 2 else _IN_FLIGHT_UNLIMITED
        self._pending: dict[int, tuple[int, int]] = {}
        self._bytes = 0
        self._is_ready = False
        self._ended = ""
        self._is_own_fault = False
        self._code = 0
        self._user_property = Properties(PacketTypes.PUBLISH)
        self._heard = ErrorKeeper()
        self._client = make_client(options, self._heard, MqttClient)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(
            target=self._keep_alive, name="mqtt keep-alive", daemon=True
        )
        try:
            self._connect()
            self._keeper.start()
        except BaseException:
            self._release()
            raise

    @property
    def is_status_refused(self) -> bool:
        """True if this user may not publish to the status topic."""
        return self.results.get(_STATUS, 0) >= REFUSED

    @property
    def is_down_to_one(self) -> bool:
        """True if exactly one message is unanswered."""
        return len(self._pending) == 1

    def largest_body(self, topic: str) -> int | None:
        """Return the maximum body in bytes that the broker accepts; None if it announced none."""
        if self.largest_packet == _LARGEST_PACKET:
            return None
        return max(1, self.largest_packet - self._overhead(topic, _LONGEST_ID) - _LONGEST_KIND)

    @property
    def is_open(self) -> bool:
        """False when the connection has ended."""
        with self._lock:
            if not self._ended:
                self._run_once(0.0)
            return not self._ended

    def publish(
        self,
        key: int,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        name: str = "",
    ) -> None:
        """Send a message when the window has room. Raise MqttLostError."""
        with self._lock:
            if len(self._pending) >= self._window or self._bytes + len(payload) > _BYTES_IN_FLIGHT:
                # Wait for half of the window, because each wait has a cost.
                self._wait(self._window // 2, _BYTES_IN_FLIGHT // 2, self._options.seconds)
            sent = self._client.publish(topic, payload, qos, retain, self._make_properties(name))
            if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise self._make_error()
            if qos == 0 and sent.is_published():
                self.results[key] = 0
            else:
                self._pending[sent.mid] = key, len(payload)
                self._bytes += len(payload)

    def settle(self) -> None:
        """Wait until every message is answered. Raise MqttLostError."""
        with self._lock:
            self._wait(0, 0, self._options.seconds)

    def find_excess(self, topic: str, payload: bytes, name: str) -> int:
        """Return the size of a packet if it is too large for the broker, else 0."""
        size = len(payload) + self._overhead(topic, len(name.encode()))
        size -= (size < 128) + (size < 16_384) + (size < 2_097_152)
        return size if size > self.largest_packet else 0

    def _overhead(self, topic: str, name_size: int) -> int:
        """Return the bytes around a large body. A smaller body has up to three fewer."""
        size = 5 + 2 + len(topic.encode()) + (2 if self._options.qos else 0)
        if self._is_5:
            size += 1 + (7 + name_size if name_size else 0)
        return size

    def close(self) -> None:
        """Publish `offline` and disconnect. End the thread and close the socket."""
        with self._lock:
            if not self._ended:
                with contextlib.suppress(MqttLostError):
                    self._publish_status(b"offline")
                    self._wait(0, 0, _LAST_WORDS)
                self._client.disconnect()
                deadline = time.monotonic() + _LAST_WORDS
                while not self._ended and (rest := deadline - time.monotonic()) > 0:
                    self._run_once(rest)
        self.abandon()

    def abandon(self) -> None:
        """Close without a DISCONNECT. The broker then publishes the last will."""
        self._closing.set()
        self._keeper.join()
        self._release()

    def _release(self) -> None:
        """Close the sockets."""
        for opened in (self._client.socket(), self._client.opened):
            if opened is not None:
                opened.close()

    def _connect(self) -> None:
        """Log in and publish `online`. Raise MqttLostError."""
        options = self._options
        try:
            self._client.shake_hands(options)
        except (OSError, ValueError, IndexError) as error:
            raise MqttLostError(self._explain(error)) from error
        deadline = time.monotonic() + options.seconds
        while not self._is_ready and not self._ended:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise MqttLostError(
                    f"the connection is accepted, but no answer within {options.seconds:g} s"
                )
            self._run_once(rest)
        if self._ended:
            raise MqttLostError(self._ended)
        try:
            self._publish_status(b"online")
            self.settle()
        except MqttLostError as error:
            hint = f": perhaps this user may not publish to {options.status_topic}"
            raise MqttLostError(f"{error}{hint if str(error) == _CLOSED else ''}") from error

    def _publish_status(self, status: bytes) -> None:
        """Publish to the status topic, if configured."""
        if self._options.status_topic:
            qos = min(self._options.qos, 1)
            self.publish(_STATUS, self._options.status_topic, status, qos, retain=True)

    def _make_properties(self, name: str) -> Any:
        """Return properties with the id of a message; None for MQTT 3.1.1."""
        if not name or not self._is_5:
            return None
        # Shared, because creating one takes longer than sending a message.
        self._user_property.clear()
        self._user_property.UserProperty = ("id", name)
        return self._user_property

    def _wait(self, count: int, size: int, seconds: float) -> None:
        """Wait until at most these numbers of messages and bytes are unanswered.

        Raise MqttLostError if the connection ends or the time limit is exceeded.
        """
        deadline = time.monotonic() + seconds
        while len(self._pending) > count or self._bytes > size:
            if self._ended:
                raise self._make_error()
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise MqttLostError(f"no acknowledgement came within {seconds:g} s")
            if self._run_once(rest):
                deadline = time.monotonic() + seconds

    def _make_error(self) -> MqttLostError:
        return MqttLostError(
            self._ended or _CLOSED, is_closed=not self._is_own_fault, code=self._code
        )

    def _run_once(self, seconds: float) -> bool:
        """Write pending data, and read for up to `seconds`. Return whether data was transferred."""
        client = self._client
        connected: Any = client.socket()
        if connected is None:
            self._ended = self._ended or _CLOSED
            return False
        poll = select.poll()
        poll.register(connected, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
        # poll does not report bytes that TLS has already read.
        is_read = bool(connected.pending()) if hasattr(connected, "pending") else False
        events = poll.poll(0 if is_read else seconds * 1000)
        event = events[0][1] if events else 0
        waiting = len(self._pending)
        try:
            if event & select.POLLOUT:
                client.loop_write()
            if is_read or event & ~select.POLLOUT:
                client.loop_read()
                # A broker with Nagle's algorithm sends the next acknowledgement only after a TCP
                # ACK of the previous one. The kernel delays that ACK by 40 ms.
                if client.opened is not None:
                    with contextlib.suppress(OSError):
                        client.opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            client.loop_misc()
        except UnwantedPacketError as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 - paho 2.0 and 2.1 fail on what is not MQTT
            self._end(f"the answer is not MQTT ({type(error).__name__})")
        return bool(event & select.POLLOUT) or len(self._pending) < waiting

    def _end(self, reason: str) -> None:
        """Note the reason for the end of the connection, unless a message is the cause."""
        if not self._ended:
            self._ended = reason
            self._is_own_fault = True

    def _keep_alive(self) -> None:
        """Keep the connection alive while no message is sent."""
        # A broker may request another interval; 0 means none.
        interval = (self._client.keepalive or _USUAL_KEEP_ALIVE) / 4
        while not self._closing.wait(max(interval, _SHORTEST_KEEP_ALIVE)) and self.is_open:
            pass

    def _on_publish(
        self, _client: paho.Client, _data: Any, number: int, reason: ReasonCode, _more: Any
    ) -> None:
        if number not in self._pending:
            return
        key, size = self._pending.pop(number)
        self._bytes -= size
        self.results[key] = self._client.refusals.pop(number, reason.value)
        self.has_refused |= key != _STATUS and self.results[key] >= REFUSED

    def _on_connect(
        self,
        _client: paho.Client,
        _data: Any,
        _flags: paho.ConnectFlags,
        reason: ReasonCode,
        more: Any,
    ) -> None:
        options = self._options
        if reason.is_failure:
            self._ended = explain_refused_connection(
                str(reason), user=options.user, status_topic=options.status_topic
            )
            return
        limits: dict[str, Any] = more.json() if more is not None else {}
        self._window = min(self._window, limits.get("ReceiveMaximum", self._window))
        self.largest_packet = limits.get("MaximumPacketSize", _LARGEST_PACKET)
        if not self.largest_packet:
            self._ended = "the broker takes packets of 0 bytes only"
        elif limits.get("MaximumQoS", 2) < options.qos:
            self._ended = f"the broker offers no QoS {options.qos}: set qos"
        elif not limits.get("RetainAvailable", 1) and options.retains:
            self._ended = explain_refused_connection(
                "Retain not supported", user="", status_topic=""
            )
        self._client.wanted = AFTER_LOGIN
        self._is_ready = True

    def _on_disconnect(
        self,
        _client: paho.Client,
        _data: Any,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        _more: Any,
    ) -> None:
        if self._ended:
            return
        if flags.is_disconnect_packet_from_server:
            self._ended = explain_ended_connection(str(reason), self._options.client_id)
            self._code = reason.value
            self._is_own_fault = reason.value not in DUE_TO_MESSAGE
            return
        error, is_encrypted = self._heard.last, self._options.context is not None
        is_broken = isinstance(error, ConnectionError | ssl.SSLEOFError)
        if isinstance(error, UnwantedPacketError):
            self._end(str(error) if self._is_ready else f"the answer is not MQTT: {error}")
        elif self._is_ready and (error is None or is_broken):
            self._ended = _CLOSED
        elif error is not None and (is_encrypted or not is_broken):
            self._ended = self._explain(error)
        else:
            tls = "" if is_encrypted else ", or it expects TLS"
            self._ended = f"no broker of MQTT {self._options.protocol} answers there{tls}"

    def _explain(self, error: Exception) -> str:
        options = self._options
        return explain_no_connection(
            error,
            path=options.path,
            seconds=options.seconds,
            is_encrypted=options.context is not None,
        )
