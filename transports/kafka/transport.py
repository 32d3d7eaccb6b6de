"""The transport `kafka://` and `kafkas://`: messages for topics of Apache Kafka.

The default topic is `[prefix.]<cluster>.<kind>`. The key is the node, to keep a node's messages in
order. The header `id` is the same at each repetition of a message.
"""

from __future__ import annotations

import importlib.util
from itertools import takewhile
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import printable
from ccagent.machine.interpreter import install_command
from ccagent.transports.base import ProbeResult, Transport
from ccagent.transports.kafka import faults
from ccagent.transports.kafka.connection import LARGEST_BODY, KafkaConnection
from ccagent.transports.kafka.settings import KafkaSettings, check_settings
from ccagent.transports.kafka.topics import fill_topic, is_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message

_LONGEST_ERROR = 400


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
            reports = {sent[place]: error for place, error in outcome.reports.items()}
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
            if name not in faults.TOO_LARGE | faults.INVALID:
                self.close()
                is_about = name in faults.ABOUT_MESSAGE
                raise RetryableError(text, delivered=first, is_about_message=is_about)
            if len(sent) == 1:
                # The library does not report the limits of broker and topic.
                error = TooLargeError if name in faults.TOO_LARGE else RejectedError
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
