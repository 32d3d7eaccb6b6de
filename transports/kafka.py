"""The transport `kafka://` and `kafkas://`: messages for topics of Apache Kafka.

The default topic is `[prefix.]<cluster>.<kind>`. The key is the node, to keep a node's messages in
order. The header `id` is the same at each repetition of a message.
"""

from __future__ import annotations

import importlib.util
import re
from itertools import takewhile
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import printable
from ccagent.machine.interpreter import install_command
from ccagent.net.tls import check_network
from ccagent.net.urls import split_servers
from ccagent.transports.base import (
    ProbeResult,
    Transport,
    check_template,
    fill_template,
    get_values,
)
from ccagent.transports.kafka_connection import (
    ABOUT_MESSAGE,
    INVALID,
    LARGEST_BODY,
    TOO_LARGE,
    KafkaConnection,
    KafkaSettings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.net.urls import Server
    from ccagent.records.message import Message

_VALID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_PORTS = {"kafka": 9092, "kafkas": 9093}
_LONGEST_ERROR = 400


def fill_topic(template: str, message: Message) -> str:
    """Return the topic of a message. The dot after an empty prefix is omitted."""
    if not template:
        return message.topic
    return fill_template(template, get_values(message), ".")


def is_topic(name: str) -> bool:
    """Return whether a name is valid for a topic."""
    return _VALID.fullmatch(name) is not None


def check_settings(settings: KafkaSettings) -> list[Server]:
    """Check the keys and return the servers. Raise ConfigurationError."""
    servers = split_servers(settings.url, _PORTS[settings.scheme])
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    if settings.topic and not is_topic(check_template("topic", settings.topic)):
        raise ConfigurationError("topic: letters, digits, '.', '_' and '-' only, 249 at most")
    check_network(
        settings,
        [server.host for server in servers],
        is_encrypted=settings.is_encrypted,
        secret=settings.password_file,
    )
    return servers


class KafkaTransport(Transport):
    """Produces to Kafka topics. A message is delivered when all in-sync replicas have it.

    After a failure the producer is destroyed with its messages. The queue sends them again.
    """

    Settings = KafkaSettings
    largest_body = LARGEST_BODY

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._servers = check_settings(self._settings)
        scheme = self._settings.scheme
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                f"url: {scheme}:// needs a library: {install_command('confluent-kafka')}"
            )
        self._place = f"{scheme}://{','.join(map(str, self._servers))}"
        self._connection: KafkaConnection | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Produce messages and wait until each is acknowledged."""
        topics = [fill_topic(self._settings.topic, message) for message in messages]
        waiting: list[int] = [*range(len(messages))]
        alone = False
        while waiting:
            first = waiting[0]
            wanted = waiting[:1] if alone else waiting
            sent = [*takewhile(lambda number: is_topic(topics[number]), wanted)]
            if not sent:
                text = f"{topics[first]!r} is not a topic: letters, digits, '.', '_' and '-' only"
                raise RejectedError(self._describe(text), delivered=first)
            connection = self._get_connection(messages[first].cluster, delivered=first)
            outcome = connection.send([(topics[number], messages[number]) for number in sent])
            reports = {sent[position]: error for position, error in outcome.reports.items()}
            waiting = [n for n in waiting if n not in reports or reports[n] is not None]
            if (last := connection.last) is not None:
                self.answer = (
                    f"topic {last.topic()}, partition {last.partition()}, offset {last.offset()}"
                )
            if outcome.given_up:
                self.close()
                delivered = waiting[0] if waiting else len(messages)
                raise RetryableError(self._describe(outcome.given_up), delivered=delivered)
            failed = reports.get(waiting[0]) if waiting else None
            if failed is None:
                continue  # the library's queue is full; the rest is sent later
            first = waiting[0]
            text = self._describe(connection.explain(failed, topics[first], messages[first]))
            name = failed.name()
            if name not in TOO_LARGE | INVALID:
                self.close()
                is_about = name in ABOUT_MESSAGE
                raise RetryableError(text, delivered=first, is_about_message=is_about)
            if len(sent) == 1:
                # The library does not report the limits of broker and topic.
                error = TooLargeError if name in TOO_LARGE else RejectedError
                raise error(text, delivered=first)
            # A broker refuses whole batches. Only a message sent alone is certainly the cause.
            alone = True

    def probe(self, message: Message) -> ProbeResult:
        """Connect, log in, and look up the brokers and the topic. Raise RetryableError."""
        topic = fill_topic(self._settings.topic, message)
        try:
            return ProbeResult(self._get_connection(message.cluster, delivered=0).probe(topic))
        except RetryableError as error:
            raise RetryableError(self._describe(str(error))) from error
        finally:
            self.close()

    def close(self) -> None:
        """Destroy the producer with its remaining messages."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _get_connection(self, cluster: str, *, delivered: int) -> KafkaConnection:
        if self._connection is None:
            try:
                self._connection = KafkaConnection(self._settings, self._servers, cluster)
            except (ConfigurationError, ImportError) as error:
                # Files and libraries may be valid at the next attempt.
                raise RetryableError(self._describe(str(error)), delivered=delivered) from error
        return self._connection

    def _describe(self, text: str) -> str:
        """Return an error message: the brokers and a text, printable and of bounded length."""
        return f"{self._place}: {printable(text)[:_LONGEST_ERROR]}"
