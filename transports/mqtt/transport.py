"""`mqtt://`, `mqtts://`, `ws://` and `wss://` publish each message to a broker of MQTT.

At QoS 1 and 2 a message counts as delivered when the broker has acknowledged it, at QoS 0 when
it is written to the connection. A status topic holds `online` or, by last will, `offline`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import logger
from ccagent.transports.base import Reached, SinkSettings, Transport
from ccagent.transports.mqtt.settings import ENCRYPTED, PORTS, WEBSOCKETS, MqttSettings, checked
from ccagent.transports.mqtt.topics import filled
from ccagent.transports.network import tls_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message
    from ccagent.transports.mqtt.connection import Connection, LostError

_REFUSED = 0x80
_CAREFUL = 100
"""How many messages are sent one by one after the broker has closed the connection."""


class MqttTransport(Transport):
    """Publishes to topics of an MQTT broker, over one kept connection."""

    Settings = MqttSettings

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, MqttSettings)
            else MqttSettings(url=settings.url, format=settings.format)
        )
        self._target = checked(self._settings)
        self._place = f"{self._target.scheme}://{self._target.netloc}{self._target.path}"
        self._connection: Connection | None = None
        self._ahead: frozenset[str] = frozenset()
        self._careful = 0

    def send(self, messages: Sequence[Message]) -> None:
        """Publish messages and wait for the broker's acknowledgements."""
        if not messages:
            return
        connection = self._connected(messages[0])
        try:
            unsendable, lost = self._publish(connection, messages)
        except BaseException:
            # Its answers would be taken for those to the next messages.
            self._abandon()
            raise
        results = connection.results
        if lost is not None:
            self._abandon()
        delivered = 0
        while results.get(delivered, _REFUSED) < _REFUSED:
            delivered += 1
        # The others that the broker has already need not travel again.
        self._ahead = frozenset(
            messages[index].id
            for index, reason in results.items()
            if index > delivered and reason < _REFUSED
        ) - {""}
        if delivered == len(messages):
            topic, qos = self._topic(messages[-1]), self._settings.qos
            said = f"acknowledged it at QoS {qos}" if qos else "acknowledges nothing at QoS 0"
            self.answer = f"the broker {said}, topic {topic}"
            return
        if delivered in results:
            self._complain(results[delivered], messages[delivered], delivered)
        if lost is not None:
            is_alone = connection.is_down_to_one and lost.is_closed
            self._raise_lost(lost, messages[delivered], delivered, is_alone=is_alone)
        if unsendable is not None:
            unsendable.delivered = delivered
            raise unsendable
        raise RetryableError(f"{self._place}: no acknowledgement came", delivered=delivered)

    def reach(self, message: Message) -> Reached:
        """Connect and log in, under another client id and without a status.

        Those of a daemon that is connected already stay as they are. Raises as `send` does.
        """
        self._opened(message, suffix="-doctor").close()
        return Reached("the broker lets us in")

    def close(self) -> None:
        """Publish `offline`, disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _publish(
        self, connection: Connection, messages: Sequence[Message]
    ) -> tuple[RejectedError | None, LostError | None]:
        """Publish up to the first that can't be: why that, or why the connection is lost."""
        from ccagent.transports.mqtt.connection import LostError

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
                    topic = self._topic(message)
                except ValueError as error:
                    unsendable = RejectedError(f"{self._place}: {error}")
                    break
                if size := connection.excess(topic, message.body, message.id):
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
        except LostError as error:
            return unsendable, error
        return unsendable, None

    def _complain(self, reason: int, message: Message, delivered: int) -> NoReturn:
        """Raise what the broker's refusal of a message means."""
        from ccagent.transports.mqtt import reasons

        text = reasons.refused_message(reason, self._topic(message), len(message.body))
        text = f"{self._place}: {text}"
        if reason == reasons.PACKET_TOO_LARGE:
            raise TooLargeError(text, delivered=delivered)
        if reason == reasons.PAYLOAD_INVALID:
            raise RejectedError(text, delivered=delivered)
        raise RetryableError(
            text, delivered=delivered, is_about_message=reason not in reasons.PASSING
        )

    def _raise_lost(
        self, lost: LostError, message: Message, delivered: int, *, is_alone: bool
    ) -> NoReturn:
        """Raise why a connection is lost: perhaps for the only message that was on its way.

        MQTT 3.1.1 has no other way to refuse one. So the next messages are sent one by one.
        """
        from ccagent.transports.mqtt.reasons import PACKET_TOO_LARGE

        text = f"{self._place}: {lost}"
        if lost.is_closed:
            self._careful = _CAREFUL
        if is_alone:
            text += (
                f" when a message of {len(message.body)} bytes to {self._topic(message)} came:"
                " perhaps it is too large for the broker, or this user may not publish there"
            )
        if is_alone and lost.code == PACKET_TOO_LARGE:
            raise TooLargeError(text, delivered=delivered)
        raise RetryableError(text, delivered=delivered, is_about_message=is_alone)

    def _abandon(self) -> None:
        """Drop the connection without a word."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _connected(self, first: Message) -> Connection:
        """Return the connection; make one if there is none, as the node of the first message."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._abandon()
        suffix = f"-once-{os.getpid()}" if self.is_one_shot else ""
        connection = self._connection = self._opened(first, suffix)
        try:
            self.largest_body = connection.largest_body(self._topic(first))
        except ValueError:
            self.largest_body = None  # that message will be refused for its topic
        return connection

    def _opened(self, first: Message, suffix: str) -> Connection:
        """Make a connection. Raises RetryableError.

        One with a suffix to its client id leaves the status and the session of a daemon alone.
        """
        from ccagent.transports.mqtt.client import Options
        from ccagent.transports.mqtt.connection import Connection, LostError

        settings, target = self._settings, self._target
        is_passing = bool(suffix)
        status = "" if is_passing else settings.status_topic
        path = f"{target.path or '/mqtt'}{'?' if target.query else ''}{target.query}"
        try:
            options = Options(
                host=target.hostname or "",
                port=target.port or PORTS[target.scheme],
                path=path if target.scheme in WEBSOCKETS else "",
                context=tls_context(settings) if target.scheme in ENCRYPTED else None,
                protocol=settings.protocol,
                qos=settings.qos,
                client_id=_of(first, settings.client_id) + suffix,
                user=settings.user,
                password=read_secret(settings.password_file) if settings.password_file else "",
                status_topic=_of(first, status) if status else "",
                retains=bool(status) or settings.retain_sysinfo,
                seconds=settings.time_limit.seconds,
                is_passing=is_passing,
            )
            connection = Connection(options)
        except ConfigurationError as error:
            # The file may be replaced at any moment, and be right again the next time.
            raise RetryableError(str(error)) from None
        except (LostError, ValueError, OSError, RuntimeError) as error:
            # A ValueError is for a client id or a status topic: the configuration can mend that.
            raise RetryableError(f"{self._place}: {error}") from None
        if connection.is_status_refused:
            logger.warning("%s: the broker refuses %s", self._place, options.status_topic)
        return connection

    def _topic(self, message: Message) -> str:
        return _of(message, self._settings.topic)


def _of(message: Message, template: str) -> str:
    return filled(template, message.cluster, message.node, message.kind, message.prefix)
