"""`kafka://` and `kafkas://` produce messages to topics of Apache Kafka.

The topic is `[prefix.]<cluster>.<kind>` unless a template says otherwise, the key is the node, so
that a node's messages stay in order, and the header `id` is the same each time a message is sent.
"""

from __future__ import annotations

import importlib.util
from itertools import takewhile
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import printable
from ccagent.machine.interpreter import install_command
from ccagent.transports.base import Reached, SinkSettings, Transport
from ccagent.transports.kafka import faults
from ccagent.transports.kafka.connection import LARGEST_BODY, Connection
from ccagent.transports.kafka.settings import KafkaSettings, checked
from ccagent.transports.kafka.topics import is_topic, topic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message

_LONGEST_ERROR = 400


class KafkaTransport(Transport):
    """Produces to topics of Kafka, and is done when all replicas in sync have every message.

    After a failure the producer is destroyed with all it holds, for the outbox sends that again.
    """

    Settings = KafkaSettings
    largest_body = LARGEST_BODY

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, KafkaSettings)
            else KafkaSettings(url=settings.url, format=settings.format)
        )
        self._servers = checked(self._settings)
        scheme = self._settings.scheme
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                f"url: {scheme}:// needs a library: {install_command('confluent-kafka')}"
            )
        self._place = f"{scheme}://{','.join(map(str, self._servers))}"
        self._connection: Connection | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Produce messages and wait until each is acknowledged."""
        topics = [topic_of(self._settings.topic, message) for message in messages]
        waiting: list[int] = [*range(len(messages))]
        alone = False
        while waiting:
            first = waiting[0]
            wanted = waiting[:1] if alone else waiting
            sent = [*takewhile(lambda number: is_topic(topics[number]), wanted)]
            if not sent:
                text = f"{topics[first]!r} can't be a topic: letters, digits, '.', '_' and '-' can"
                raise RejectedError(self._said(text), delivered=first)
            connection = self._connected(messages[first].cluster, delivered=first)
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
                raise RetryableError(self._said(outcome.given_up), delivered=delivered)
            failed = reports.get(waiting[0]) if waiting else None
            if failed is None:
                continue  # all went well as far as the library's queue reached
            first = waiting[0]
            text = self._said(connection.explained(failed, topics[first], messages[first]))
            name = failed.name()
            if name not in faults.TOO_LARGE | faults.INVALID:
                self.close()
                is_about = name in faults.ABOUT_MESSAGE
                raise RetryableError(text, delivered=first, is_about_message=is_about)
            if len(sent) == 1:
                # The library tells the limits of neither broker nor topic.
                error = TooLargeError if name in faults.TOO_LARGE else RejectedError
                raise error(text, delivered=first)
            # A broker judges whole batches: only a message sent alone can be blamed.
            alone = True

    def reach(self, message: Message) -> Reached:
        """Connect, log in, and ask for the brokers and the topic. Raises RetryableError."""
        topic = topic_of(self._settings.topic, message)
        try:
            return Reached(self._connected(message.cluster, delivered=0).reach(topic))
        except RetryableError as error:
            raise RetryableError(self._said(str(error))) from None
        finally:
            self.close()

    def close(self) -> None:
        """Destroy the producer with all that it still holds."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self, cluster: str, *, delivered: int) -> Connection:
        if self._connection is None:
            try:
                self._connection = Connection(self._settings, self._servers, cluster)
            except (ConfigurationError, ImportError) as error:
                # Files and libraries may be replaced at any moment, and be right the next time.
                raise RetryableError(self._said(str(error)), delivered=delivered) from None
        return self._connection

    def _said(self, text: str) -> str:
        return f"{self._place}: {printable(text)[:_LONGEST_ERROR]}"
