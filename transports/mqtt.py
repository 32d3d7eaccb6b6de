"""The transport `mqtt://`, `mqtts://`, `ws://`, `wss://`: messages for an MQTT broker.

At QoS 1 and 2 a message counts as delivered when the broker has acknowledged it, at QoS 0 when it
was written to the connection. A status topic contains `online` or, by last will, `offline`.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from msgspec import Meta

from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import logger
from ccagent.net.mqtt_broker import (
    CLOSED,
    PACKET_TOO_LARGE,
    PASSING,
    PAYLOAD_INVALID,
    REFUSED,
    LastWill,
    MqttLostError,
    MqttOptions,
    check_broker,
    explain_refused_message,
)
from ccagent.transports import base
from ccagent.transports.base import NetworkSinkSettings, ProbeResult, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from urllib.parse import SplitResult

    from ccagent.net.mqtt import MqttConnection
    from ccagent.records.message import Message

_LONGEST = 65535
_WILDCARDS = re.compile(r"[+#\0]")
_NOT_IN_LEVELS = re.compile(r"[+#\0/]")

_CAREFUL = 100
"""Number of messages to send one by one after the broker has closed the connection."""

_STATUS = -1
"""The key of the status among the results of messages."""


class MqttSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """Keys of a sink `mqtt://`, `mqtts://`, `ws://` or `wss://`."""

    protocol: Annotated[Literal["3.1.1", "5"], Meta(description="version of MQTT")] = "5"
    qos: Annotated[
        Literal[0, 1, 2],
        Meta(description="0: not acknowledged; 1: acknowledged; 2: acknowledged twice"),
    ] = 1
    topic: Annotated[
        str, Meta(description="topic of a message; an empty level {prefix} is omitted")
    ] = "{prefix}/{cluster}/{kind}/{node}"
    status_topic: Annotated[
        str, Meta(description="topic with 'online' or 'offline'; empty: none")
    ] = "{cluster}/status/{node}"
    retain_sysinfo: Annotated[
        bool, Meta(description="let the broker retain the latest sysinfo of each node")
    ] = False
    client_id: Annotated[str, Meta(description="unique among all clients of the broker")] = (
        "ccagent-{node}"
    )


def check_settings(settings: MqttSettings) -> SplitResult:
    """Check the keys and return the parts of the URL. Raise ConfigurationError."""
    check_template("topic", settings.topic, "prefix", "cluster", "kind", "node")
    check_template("client-id", settings.client_id, "cluster", "node")
    if settings.status_topic:
        check_template("status-topic", settings.status_topic, "prefix", "cluster", "node")
    return check_broker(settings)


def check_template(key: str, template: str, *known: str) -> None:
    """Check a template of a topic. Raise ConfigurationError if it is invalid."""
    if not template:
        raise ConfigurationError(f"{key}: must not be empty")
    if _WILDCARDS.search(template):
        raise ConfigurationError(f"{key}: the wildcards + and # can't be part of it")
    base.check_template(key, template, known)


@lru_cache(maxsize=1000)
def fill_topic(template: str, cluster: str, node: str, kind: str, prefix: str) -> str:
    """Return the topic of a template. Raise ValueError if a value can't be part of a topic.

    The level of an empty prefix is omitted. Only a prefix may have several levels.
    """
    values = {"prefix": prefix, "cluster": cluster, "node": node, "kind": kind}
    for name, value in values.items():
        if f"{{{name}}}" not in template or (name == "prefix" and not value):
            continue
        refused = _WILDCARDS if name == "prefix" else _NOT_IN_LEVELS
        if not value or refused.search(value):
            raise ValueError(f"the {name} {value!r} can't be a level of a topic")
    topic = base.fill_template(template, values, "/")
    if not 0 < len(topic.encode()) <= _LONGEST:
        raise ValueError(f"a topic has 1 to {_LONGEST} bytes")
    return topic


class MqttTransport(Transport):
    """Publishes to topics of an MQTT broker, over one kept connection."""

    Settings = MqttSettings

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings
        target = check_settings(settings)
        self._place = f"{target.scheme}://{target.netloc}{target.path}"
        self._connection: MqttConnection | None = None
        self._ahead: frozenset[str] = frozenset()
        self._careful = 0

    def send(self, messages: Sequence[Message]) -> None:
        """Publish messages and wait for the broker's acknowledgements."""
        if not messages:
            return
        connection = self._get_connection(messages[0])
        try:
            unsendable, lost = self._publish(connection, messages)
        except BaseException:
            # A late answer would be assigned to one of the next messages.
            self._abandon()
            raise
        results = connection.results
        if lost is not None:
            self._abandon()
        delivered = 0
        while results.get(delivered, REFUSED) < REFUSED:
            delivered += 1
        # Later messages that the broker has accepted are not sent again.
        self._ahead = frozenset(
            messages[index].id
            for index, reason in results.items()
            if index > delivered and reason < REFUSED
        ) - {""}
        if delivered == len(messages):
            topic, qos = self._fill_topic(messages[-1]), self._settings.qos
            acknowledged = f"acknowledged it at QoS {qos}" if qos else "does not acknowledge QoS 0"
            self.answer = f"the broker {acknowledged}, topic {topic}"
            return
        if delivered in results:
            self._raise_refusal(results[delivered], messages[delivered], delivered)
        if lost is not None:
            is_alone = connection.is_down_to_one and lost.is_closed
            self._raise_lost(lost, messages[delivered], delivered, is_alone=is_alone)
        if unsendable is not None:
            unsendable.delivered = delivered
            raise unsendable
        raise RetryableError(f"{self._place}: no acknowledgement", delivered=delivered)

    def probe(self, message: Message) -> ProbeResult:
        """Connect and log in, with another client id and without a status.

        A connected daemon keeps its session and status. Raise as `send` does.
        """
        self._open(message, suffix="-doctor").close()
        return ProbeResult("the broker accepts the login")

    def close(self) -> None:
        """Publish `offline` and disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _publish(
        self, connection: MqttConnection, messages: Sequence[Message]
    ) -> tuple[RejectedError | None, MqttLostError | None]:
        """Publish messages up to the first that can't be sent.

        Return its error, and the error of a lost connection, each None without error.
        """
        settings = self._settings
        results = connection.results
        results.clear()
        connection.has_refused = False
        unsendable: RejectedError | None = None
        try:
            for index, message in enumerate(messages):
                if message.id in self._ahead:
                    results[index] = 0
                    continue
                if connection.has_refused:
                    break
                try:
                    topic = self._fill_topic(message)
                except ValueError as error:
                    unsendable = RejectedError(f"{self._place}: {error}")
                    break
                if size := connection.find_excess(topic, message.body, message.id):
                    limit = connection.largest_packet
                    unsendable = TooLargeError(
                        f"{self._place}: a message of {size} bytes: the broker takes at most"
                        f" {limit}",
                        limit=connection.largest_body(topic),
                    )
                    break
                retain = settings.retain_sysinfo and message.kind == "sysinfo"
                connection.publish(
                    index, topic, message.body, settings.qos, retain=retain, name=message.id
                )
                if self._careful:
                    connection.settle()
                    self._careful -= 1
            connection.settle()
        except MqttLostError as error:
            return unsendable, error
        return unsendable, None

    def _raise_refusal(self, reason: int, message: Message, delivered: int) -> NoReturn:
        """Raise the error for a refused message."""
        text = explain_refused_message(reason, self._fill_topic(message), len(message.body))
        text = f"{self._place}: {text}"
        if reason == PACKET_TOO_LARGE:
            raise TooLargeError(text, delivered=delivered)
        if reason == PAYLOAD_INVALID:
            raise RejectedError(text, delivered=delivered)
        is_busy = reason in PASSING
        raise RetryableError(
            text, delivered=delivered, is_about_message=not is_busy, is_busy=is_busy
        )

    def _raise_lost(
        self, lost: MqttLostError, message: Message, delivered: int, *, is_alone: bool
    ) -> NoReturn:
        """Raise the error for a lost connection.

        A single message in flight may be the cause: a broker of MQTT 3.1.1 can't refuse a message
        in another way. Therefore the next messages are sent one by one.
        """
        text = f"{self._place}: {lost}"
        if lost.is_closed:
            self._careful = _CAREFUL
        if is_alone:
            text += (
                f" when a message of {len(message.body)} bytes to {self._fill_topic(message)} came:"
                " perhaps it is too large for the broker, or this user may not publish there"
            )
        if is_alone and lost.code == PACKET_TOO_LARGE:
            raise TooLargeError(text, delivered=delivered)
        raise RetryableError(text, delivered=delivered, is_about_message=is_alone)

    def _abandon(self) -> None:
        """Drop the connection without a DISCONNECT."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _get_connection(self, first: Message) -> MqttConnection:
        """Return the connection. Open one for the node of the first message if needed."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._abandon()
        suffix = f"-once-{os.getpid()}" if self.is_one_shot else ""
        connection = self._connection = self._open(first, suffix)
        try:
            self.largest_body = connection.largest_body(self._fill_topic(first))
        except ValueError:
            self.largest_body = None  # the message is refused later because of its topic
        return connection

    def _open(self, first: Message, suffix: str) -> MqttConnection:
        """Open a connection and publish `online`. Raise RetryableError if that fails.

        With a suffix of the client id, it does not change the status and session of a daemon.
        """
        from ccagent.net.mqtt import MqttConnection

        settings = self._settings
        try:
            will = None
            if settings.status_topic and not suffix:
                status = _fill(first, settings.status_topic)
                will = LastWill(status, b"offline", min(settings.qos, 1), retain=True)
            options = MqttOptions(
                settings,
                _fill(first, settings.client_id) + suffix,
                will,
                qos=settings.qos,
                qos_hint=": set qos",
                retains=will is not None or settings.retain_sysinfo,
                is_passing=bool(suffix),
            )
            connection = MqttConnection(options)
            try:
                if will is not None:
                    self._publish_online(connection, will)
                connection.start_keep_alive()
            except BaseException:
                connection.abandon()
                raise
        except ConfigurationError as error:
            # The file may be valid at the next attempt.
            raise RetryableError(str(error)) from error
        except (MqttLostError, ValueError, OSError, RuntimeError) as error:
            # A ValueError is caused by the keys client-id or status-topic.
            raise RetryableError(f"{self._place}: {error}") from error
        return connection

    def _publish_online(self, connection: MqttConnection, will: LastWill) -> None:
        """Publish the status. Raise MqttLostError."""
        try:
            connection.publish(_STATUS, will.topic, b"online", will.qos, retain=True)
            connection.settle()
        except MqttLostError as error:
            is_closed = str(error) == CLOSED
            hint = f": perhaps this user may not publish to {will.topic}" if is_closed else ""
            raise MqttLostError(f"{error}{hint}") from error
        if connection.has_refused:
            logger.warning("%s: the broker refuses %s", self._place, will.topic)

    def _fill_topic(self, message: Message) -> str:
        return _fill(message, self._settings.topic)


def _fill(message: Message, template: str) -> str:
    """Return a template with the values of a message. Raise ValueError for an invalid value."""
    return fill_topic(template, message.cluster, message.node, message.kind, message.prefix)
