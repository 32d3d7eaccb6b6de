"""One connection of the session, from CONNECT to its end."""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ccagent.agents.fast.session.client import WANTED, SubscribingClient
from ccagent.log import logger
from ccagent.transports.mqtt.client import (
    REFUSED,
    ErrorKeeper,
    UnwantedPacketError,
    make_client,
)
from ccagent.transports.mqtt.connection import MqttLostError
from ccagent.transports.mqtt.reasons import (
    explain_ended_connection,
    explain_no_connection,
    explain_refused_connection,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paho.mqtt import client as paho
    from paho.mqtt.reasoncodes import ReasonCode

    from ccagent.agents.fast.session.client import AnswerReply
    from ccagent.transports.mqtt.client import MqttOptions

_CLOSED = "the broker closed the connection"
_WINDOW = 100
_UNKNOWN_WINDOW = 20
"""Limit of unacknowledged messages for a broker that announces none (MQTT 3.1.1)."""
_MOST_WAITING = 1000
"""Limit of waiting droppable messages; further messages are dropped."""
_LAST_WORDS = 1.0


class ReceivedMessage(NamedTuple):
    """A received message.

    number: packet identifier. is_repeated: possibly delivered before (DUP).
    """

    topic: str
    payload: bytes
    number: int
    qos: int
    is_repeated: bool
    is_retained: bool


class LastWill(NamedTuple):
    """Message that the broker publishes when the connection breaks."""

    topic: str
    payload: bytes


class FastConnection:
    """Connects, keeps the connection alive, and passes on messages. Used under one lock."""

    def __init__(
        self,
        options: MqttOptions,
        will: LastWill,
        *,
        on_message: Callable[[ReceivedMessage], None],
        on_reply: Callable[[AnswerReply], None],
        forgets: bool,
    ) -> None:
        """Connect and log in. forgets: start a new session. Raise MqttLostError if that fails."""
        self.has_session = False
        """True if the broker kept the session of the last connection."""
        self.answer_qos = 2
        self.is_oversized = False
        """True if a too large message has ended the connection."""
        self._options = options
        self._ended = ""
        self._is_ready = False
        self._unconfirmed: set[int] = set()
        self._window = _UNKNOWN_WINDOW
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._subscribed: set[str] = set()
        self._asked: dict[int, list[str]] = {}
        self._heard = ErrorKeeper()
        if forgets:
            options = options._replace(is_passing=True)
        self._client = client = make_client(options, self._heard, SubscribingClient)
        client.will_set(will.topic, will.payload, qos=1, retain=False)
        client.manual_ack_set(True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_reply = on_reply
        self._hand_on = on_message
        try:
            self._connect(options)
        except BaseException:
            self.abandon()
            raise

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket, for poll(2); -1 if closed."""
        connected = self._client.socket()
        return -1 if connected is None else connected.fileno()

    @property
    def wants_write(self) -> bool:
        """Return whether bytes are waiting to be written."""
        return bool(self._client.want_write())

    @property
    def has_buffered(self) -> bool:
        """Return whether TLS has buffered bytes that poll(2) does not report."""
        connected: Any = self._client.socket()
        return bool(connected is not None and hasattr(connected, "pending") and connected.pending())

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe to these filters, and unsubscribe from others."""
        wanted = set(filters)
        added, removed = sorted(wanted - self._subscribed), sorted(self._subscribed - wanted)
        if added:
            _, number = self._client.subscribe(self._with_options(added))
            if number is not None:
                self._asked[number] = added
        if removed:
            self._client.unsubscribe(removed)
        self._subscribed = wanted

    def publish(self, topic: str, payload: bytes) -> bool:
        """Publish at QoS 1, when the window has room; return False if the message is dropped."""
        if self._ended or len(self._waiting) >= _MOST_WAITING:
            return False
        self._waiting.append((topic, payload))
        self._send_waiting()
        return not self._ended

    def _send_waiting(self) -> None:
        while self._waiting and len(self._unconfirmed) < self._window:
            sent = self._client.publish(*self._waiting.popleft(), 1, retain=False)
            if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._waiting.clear()
                break
            self._unconfirmed.add(sent.mid)

    def send_answer(self, number: int, topic: str, payload: bytes, *, repeats: bool) -> None:
        """Send an answer. Raise MqttLostError if the connection is lost."""
        sent = self._client.send_answer(number, topic, payload, self.answer_qos, repeats=repeats)
        if not sent:
            raise self._lost()

    def release_answer(self, number: int) -> None:
        """Release an answer for delivery by the broker.

        Raise MqttLostError if the connection is lost.
        """
        if not self._client.release_answer(number):
            raise self._lost()

    def confirm(self, received: ReceivedMessage) -> None:
        """Acknowledge a message; the broker then forgets it."""
        if not self._ended:
            self._client.ack(received.number, received.qos)

    def turn(self, events: int, *, is_read: bool) -> None:
        """Write and read as reported by poll(2). Raise MqttLostError if the connection is lost."""
        client = self._client
        try:
            if events & select.POLLOUT:
                client.loop_write()
            if is_read or events & ~select.POLLOUT:
                client.loop_read()
            client.loop_misc()
        except UnwantedPacketError as error:
            self._ended = self._ended or str(error)
        except Exception as error:  # noqa: BLE001 - paho 2.0 and 2.1 fail on data that isn't MQTT
            self._ended = f"the answer is not MQTT ({type(error).__name__})"
        if client.socket() is None:
            self._ended = self._ended or _CLOSED
        if self._ended:
            raise self._lost()

    def close(self, topic: str, payload: bytes) -> None:
        """Publish a last message, disconnect from the broker, and close the socket."""
        with contextlib.suppress(MqttLostError, OSError):
            self._waiting.clear()
            if not self._ended and self.publish(topic, payload):
                deadline = time.monotonic() + _LAST_WORDS
                while (self._unconfirmed or self._waiting) and (
                    rest := deadline - time.monotonic()
                ) > 0:
                    self._wait(rest)
            if not self._ended:
                self._client.disconnect()
        self.abandon()

    def abandon(self) -> None:
        """Close the socket without DISCONNECT: the broker then publishes the last will."""
        self._ended = self._ended or _CLOSED
        for opened in (self._client.socket(), self._client.opened):
            if opened is not None:
                opened.close()

    def _wait(self, seconds: float) -> None:
        """Write pending bytes, and read for `seconds`.

        Raise MqttLostError if the connection is lost.
        """
        poll = select.poll()
        if self.descriptor < 0:
            raise self._lost()
        is_read = self.has_buffered
        poll.register(self.descriptor, select.POLLIN | (select.POLLOUT if self.wants_write else 0))
        events = poll.poll(0 if is_read else seconds * 1000)
        self.turn(events[0][1] if events else 0, is_read=is_read)

    def _connect(self, options: MqttOptions) -> None:
        try:
            self._client.shake_hands(options)
        except (OSError, ValueError, IndexError) as error:
            raise MqttLostError(self._explained(error)) from error
        deadline = time.monotonic() + options.seconds
        while not self._is_ready:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise MqttLostError(
                    f"the connection was accepted, but no answer came within {options.seconds:g} s"
                )
            self._wait(rest)

    def _with_options(self, filters: list[str]) -> Any:
        if self._options.protocol == "5":
            # Receive retained messages once, not with each connection.
            options = SubscribeOptions(
                qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            return [(each, options) for each in filters]
        return [(each, 1) for each in filters]

    def _lost(self) -> MqttLostError:
        return MqttLostError(self._ended or _CLOSED)

    def _on_connect(
        self,
        _client: paho.Client,
        _data: Any,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        more: Any,
    ) -> None:
        if reason.is_failure:
            self._ended = explain_refused_connection(
                str(reason), user=self._options.user, status_topic=""
            )
            return
        limits: dict[str, Any] = more.json() if more is not None else {}
        most = limits.get("MaximumQoS", 2)
        if most < 1:
            self._ended = "the broker offers no QoS 1, which FAST needs"
            return
        self.answer_qos = most
        if self._options.protocol == "5":
            # One place is for the answer in flight.
            self._window = max(1, min(_WINDOW, limits.get("ReceiveMaximum", _WINDOW)) - 1)
        self.has_session = bool(flags.session_present)
        self._client.wanted = WANTED
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
        error = self._heard.last
        if flags.is_disconnect_packet_from_server:
            self._ended = explain_ended_connection(str(reason), self._options.client_id)
        elif isinstance(error, UnwantedPacketError):
            self.is_oversized = self._is_ready and "more than" in str(error)
            self._ended = str(error)
        elif error is None or isinstance(error, ConnectionError):
            self._ended = _CLOSED if self._is_ready else "no MQTT broker answers there"
        else:
            self._ended = self._explained(error)

    def _on_publish(
        self, _client: paho.Client, _data: Any, number: int, reason: ReasonCode, _more: Any
    ) -> None:
        self._unconfirmed.discard(number)
        self._send_waiting()
        code = self._client.refusals.pop(number, reason.value)
        if code >= REFUSED:
            logger.warning(
                "agent fast: the broker refuses to publish (reason %#x); see its access list", code
            )

    def _on_subscribe(
        self, _client: paho.Client, _data: Any, number: int, reasons: list[ReasonCode], _more: Any
    ) -> None:
        for each, reason in zip(self._asked.pop(number, []), reasons, strict=False):
            if reason.is_failure:
                logger.error(
                    "agent fast: the broker refuses to subscribe to %s: %s; see its access list",
                    each,
                    str(reason).lower(),
                )

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        self._hand_on(
            ReceivedMessage(
                topic,
                bytes(message.payload),
                message.mid,
                message.qos,
                bool(message.dup),
                bool(message.retain),
            )
        )

    def _explained(self, error: Exception) -> str:
        options = self._options
        return explain_no_connection(
            error,
            path=options.path,
            seconds=options.seconds,
            is_encrypted=options.context is not None,
        )
