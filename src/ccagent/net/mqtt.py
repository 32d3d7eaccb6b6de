"""One connection to an MQTT broker: messages out, with the broker's answer to each, and in.

A failed connection is not reused. The next connection has a new client: the library must not keep
messages that a queue sends again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

from ccagent.net.mqtt_broker import (
    CLOSED,
    DUE_TO_MESSAGE,
    REFUSED,
    MqttLostError,
    ReceivedMessage,
    explain_ended_connection,
    explain_refused_connection,
)
from ccagent.net.mqtt_client import (
    AFTER_LOGIN,
    KEEP_ALIVE,
    WITH_SUBSCRIPTIONS,
    MqttClient,
    UnwantedPacketError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.net.mqtt_broker import MqttOptions, NumberedReply

_SHORTEST_KEEP_ALIVE = 0.25
_LAST_WORDS = 1.0
_LARGEST_PACKET = 268_435_460
_BYTES_IN_FLIGHT = 1024 * 1024
_IN_FLIGHT = 100
_IN_FLIGHT_UNLIMITED = 20
"""Messages of QoS 2 in flight that any MQTT 3.1.1 broker accepts. The protocol has no limit."""

_LONGEST_ID = 64
_LONGEST_KIND = 64
_FAREWELL = -1


class MqttConnection:
    """Publishes with a bounded number of messages in flight, and keeps each answer.

    Any thread may call its methods. `on_message` and `on_reply` are called by `turn` and by what
    waits for the broker; without `on_message` the broker may send no messages.
    """

    def __init__(
        self,
        options: MqttOptions,
        *,
        on_message: Callable[[ReceivedMessage], None] | None = None,
        on_reply: Callable[[NumberedReply], None] | None = None,
    ) -> None:
        """Connect and log in. Raise MqttLostError if that fails."""
        self.results: dict[int, int] = {}
        """Reason codes by the key of a message; below REFUSED: accepted."""
        self.has_refused = False
        """True when a message was refused."""
        self.refused_filters: dict[str, str] = {}
        """Reasons by the filters of refused subscriptions."""
        self.largest_packet = _LARGEST_PACKET
        self.largest_qos = 2
        self.has_session = False
        """True if the broker kept the session of the last connection."""
        self.ended = ""
        """The reason for the end of the connection; empty before."""
        self.is_oversized = False
        """True if a too large packet has ended the connection."""
        self._options = options
        self._limit = options.settings.time_limit.seconds
        self._pending: dict[int, tuple[int, int]] = {}
        self._bytes = 0
        self._subscribed: set[str] = set()
        self._asked: dict[int, list[str]] = {}
        self._is_ready = False
        self._is_own_fault = False
        self._code = 0
        self._on_received = on_message
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None
        self._client = client = MqttClient(options)
        is_limited = client.is_5 or options.qos < 2
        self._window = _IN_FLIGHT if is_limited else _IN_FLIGHT_UNLIMITED
        client.manual_ack_set(True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_reply = on_reply
        try:
            self._log_in()
        except BaseException:
            self.abandon()
            raise

    @property
    def is_down_to_one(self) -> bool:
        """True if exactly one message is unanswered."""
        return len(self._pending) == 1

    @property
    def is_open(self) -> bool:
        """False when the connection has ended."""
        with self._lock:
            if not self.ended:
                self._run_once(0.0)
            return not self.ended

    def has_room(self, size: int, reserve: int = 0) -> bool:
        """Return whether a message of this size can be sent at once.

        reserve: number of messages that must still find room after it.
        """
        is_full = len(self._pending) + reserve >= self._window
        return not self._pending or not (is_full or self._bytes + size > _BYTES_IN_FLIGHT)

    def largest_body(self, topic: str) -> int | None:
        """Return the maximum body in bytes that the broker accepts; None if it announced none."""
        if self.largest_packet == _LARGEST_PACKET:
            return None
        return max(1, self.largest_packet - self._overhead(topic, _LONGEST_ID) - _LONGEST_KIND)

    def find_excess(self, topic: str, payload: bytes, name: str) -> int:
        """Return the size of a packet if it is too large for the broker, else 0."""
        size = len(payload) + self._overhead(topic, len(name.encode()))
        size -= (size < 128) + (size < 16_384) + (size < 2_097_152)
        return size if size > self.largest_packet else 0

    def publish(
        self,
        key: int,
        topic: str,
        payload: bytes,
        qos: int = 1,
        *,
        retain: bool = False,
        name: str = "",
    ) -> None:
        """Send a message when there is room for it. Raise MqttLostError.

        name: user property `id`, with MQTT 5.
        """
        with self._lock:
            if not self.has_room(len(payload)):
                # Wait for half of the window, because each wait has a cost.
                self._wait(self._window // 2, _BYTES_IN_FLIGHT // 2, self._limit)
            sent = self._client.publish_named(topic, payload, qos, name, retain=retain)
            self._require(sent.rc)
            if qos == 0 and sent.is_published():
                self.results[key] = 0
            else:
                self._pending[sent.mid] = key, len(payload)
                self._bytes += len(payload)

    def settle(self) -> None:
        """Wait until every message is answered. Raise MqttLostError."""
        with self._lock:
            self._wait(0, 0, self._limit)

    def publish_numbered(self, number: int, topic: str, payload: bytes, *, repeats: bool) -> None:
        """Send a message at the broker's largest QoS with a packet identifier that the user keeps.

        So another process can continue the handshake. The answer goes to `on_reply`. Raise
        MqttLostError.
        """
        with self._lock:
            qos = self.largest_qos
            self._require(
                self._client.publish_numbered(number, topic, payload, qos, repeats=repeats)
            )

    def release(self, number: int) -> None:
        """Have the broker deliver a numbered message. Raise MqttLostError."""
        with self._lock:
            self._require(self._client.release(number))

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe to these filters at QoS 1, and unsubscribe from others."""
        wanted = set(filters)
        added, removed = sorted(wanted - self._subscribed), sorted(self._subscribed - wanted)
        with self._lock:
            if added and (number := self._client.subscribe_once(added)) is not None:
                self._asked[number] = added
            if removed:
                self._client.unsubscribe(removed)
        self._subscribed = wanted

    def confirm(self, received: ReceivedMessage) -> None:
        """Acknowledge a message; the broker then forgets it."""
        with self._lock:
            if not self.ended:
                self._client.ack(received.number, received.qos)

    def poll(self, seconds: float, *, reads: bool = True, wake_up: int = -1) -> int:
        """Wait for the broker, and for the descriptor `wake_up` to be readable.

        Return the events of the connection, for `turn`. reads: False leaves messages at the broker.
        """
        with self._lock:
            connected: Any = self._client.socket()
            if connected is None:
                return 0
            descriptor: int = connected.fileno()
            # poll does not report bytes that TLS has already read.
            is_buffered = reads and hasattr(connected, "pending") and connected.pending() > 0
            wanted = select.POLLOUT if self._client.want_write() else 0
        poll = select.poll()
        poll.register(descriptor, wanted | (select.POLLIN if reads else 0))
        if wake_up >= 0:
            poll.register(wake_up, select.POLLIN)
        events = dict(poll.poll(0 if is_buffered else seconds * 1000))
        return events.get(descriptor, 0) | (select.POLLIN if is_buffered else 0)

    def turn(self, events: int) -> None:
        """Write and read as reported by `poll`. Keep the connection alive."""
        client = self._client
        with self._lock:
            try:
                if events & select.POLLOUT:
                    client.loop_write()
                if events & ~select.POLLOUT:
                    client.loop_read()
                    # A broker with Nagle's algorithm sends the next acknowledgement only after a
                    # TCP ACK of the previous one. The kernel delays that ACK by 40 ms.
                    if client.opened is not None:
                        with contextlib.suppress(OSError):
                            client.opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                client.loop_misc()
            except UnwantedPacketError as error:
                self._end(str(error))
            except Exception as error:  # noqa: BLE001 - paho 2.0 and 2.1 fail on what is not MQTT
                self._end(f"the answer is not MQTT ({type(error).__name__})")
            if client.socket() is None:
                self.ended = self.ended or CLOSED

    def start_keep_alive(self) -> None:
        """Start a thread that keeps the connection alive while no method is called."""
        self._keeper = threading.Thread(
            target=self._keep_alive, name="mqtt keep-alive", daemon=True
        )
        self._keeper.start()

    def close(self) -> None:
        """Publish the last will and disconnect. End the thread and close the socket."""
        with self._lock:
            if not self.ended:
                with contextlib.suppress(MqttLostError):
                    if self._options.will is not None:
                        topic, payload, qos, retain = self._options.will
                        self.publish(_FAREWELL, topic, payload, qos, retain=retain)
                    self._wait(0, 0, _LAST_WORDS)
                self._client.disconnect()
                deadline = time.monotonic() + _LAST_WORDS
                while not self.ended and (rest := deadline - time.monotonic()) > 0:
                    self._run_once(rest)
        self.abandon()

    def abandon(self) -> None:
        """Close without a DISCONNECT. The broker then publishes the last will."""
        self._closing.set()
        if self._keeper is not None and self._keeper.ident is not None:
            self._keeper.join()
        self.ended = self.ended or CLOSED
        for opened in (self._client.socket(), self._client.opened):
            if opened is not None:
                opened.close()

    def _log_in(self) -> None:
        try:
            self._client.shake_hands()
        except (OSError, ValueError, IndexError) as error:
            raise MqttLostError(self._client.explain(error)) from error
        deadline = time.monotonic() + self._limit
        while not self._is_ready and not self.ended:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise MqttLostError(
                    f"the connection is accepted, but no answer within {self._limit:g} s"
                )
            self._run_once(rest)
        if self.ended:
            raise MqttLostError(self.ended)

    def _overhead(self, topic: str, name_size: int) -> int:
        """Return the bytes around a large body. A smaller body has up to three fewer."""
        size = 5 + 2 + len(topic.encode()) + (2 if self._options.qos else 0)
        if self._client.is_5:
            size += 1 + (7 + name_size if name_size else 0)
        return size

    def _wait(self, count: int, size: int, seconds: float) -> None:
        """Wait until at most these numbers of messages and bytes are unanswered.

        Raise MqttLostError if the connection ends or the time limit is exceeded.
        """
        deadline = time.monotonic() + seconds
        while len(self._pending) > count or self._bytes > size:
            if self.ended:
                raise self._make_error()
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise MqttLostError(f"no acknowledgement came within {seconds:g} s")
            if self._run_once(rest):
                deadline = time.monotonic() + seconds

    def _run_once(self, seconds: float) -> bool:
        """Write pending data, and read for up to `seconds`. Return whether data was transferred."""
        waiting = len(self._pending)
        events = self.poll(seconds)
        self.turn(events)
        return bool(events & select.POLLOUT) or len(self._pending) < waiting

    def _keep_alive(self) -> None:
        # A broker may request another interval; 0 means none.
        interval = (self._client.keepalive or KEEP_ALIVE) / 4
        while not self._closing.wait(max(interval, _SHORTEST_KEEP_ALIVE)) and self.is_open:
            pass

    def _require(self, code: int) -> None:
        """Raise MqttLostError unless a packet was sent."""
        if code:
            raise self._make_error()

    def _make_error(self) -> MqttLostError:
        return MqttLostError(
            self.ended or CLOSED, is_closed=not self._is_own_fault, code=self._code
        )

    def _end(self, reason: str) -> None:
        """Note the reason for the end of the connection, unless a message is the cause."""
        if not self.ended:
            self.ended = reason
            self._is_own_fault = True

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, more: Any) -> None:
        options = self._options
        if reason.is_failure:
            self.ended = explain_refused_connection(str(reason), options)
            return
        limits: dict[str, Any] = more.json() if more is not None else {}
        self._window = min(self._window, limits.get("ReceiveMaximum", self._window))
        self.largest_packet = limits.get("MaximumPacketSize", _LARGEST_PACKET)
        self.largest_qos = limits.get("MaximumQoS", 2)
        if not self.largest_packet:
            self.ended = "the broker takes packets of 0 bytes only"
        elif self.largest_qos < options.qos:
            self.ended = f"the broker offers no QoS {options.qos}{options.qos_hint}"
        elif not limits.get("RetainAvailable", 1) and options.retains:
            self.ended = explain_refused_connection("Retain not supported", options)
        self.has_session = bool(flags.session_present)
        self._client.wanted = AFTER_LOGIN if self._on_received is None else WITH_SUBSCRIPTIONS
        self._is_ready = True

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: Any, _more: Any) -> None:
        if self.ended:
            return
        if flags.is_disconnect_packet_from_server:
            self.ended = explain_ended_connection(str(reason), self._options.client_id)
            self._code = reason.value
            self._is_own_fault = reason.value not in DUE_TO_MESSAGE
            return
        error, is_encrypted = self._client.last_error, self._client.context is not None
        is_broken = isinstance(error, ConnectionError | ssl.SSLEOFError)
        if isinstance(error, UnwantedPacketError):
            self.is_oversized = self._is_ready and "more than" in str(error)
            self._end(str(error) if self._is_ready else f"the answer is not MQTT: {error}")
        elif self._is_ready and (error is None or is_broken):
            self.ended = CLOSED
        elif error is not None and (is_encrypted or not is_broken):
            self.ended = self._client.explain(error)
        else:
            tls = "" if is_encrypted else ", or it expects TLS"
            self.ended = f"no broker of MQTT {self._options.settings.protocol} answers there{tls}"

    def _on_publish(self, _client: Any, _data: Any, number: int, reason: Any, _more: Any) -> None:
        if number not in self._pending:
            return
        key, size = self._pending.pop(number)
        self._bytes -= size
        self.results[key] = self._client.refusals.pop(number, reason.value)
        self.has_refused |= self.results[key] >= REFUSED

    def _on_subscribe(
        self, _client: Any, _data: Any, number: int, reasons: list[Any], _more: Any
    ) -> None:
        for each, reason in zip(self._asked.pop(number, []), reasons, strict=False):
            if reason.is_failure:
                self.refused_filters[each] = str(reason).lower()

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        body, flags = bytes(message.payload), (bool(message.dup), bool(message.retain))
        if self._on_received is not None:
            self._on_received(ReceivedMessage(topic, body, message.mid, message.qos, *flags))
