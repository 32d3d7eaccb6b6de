"""The transport `kafka://` and `kafkas://`: messages for topics of Apache Kafka.

The default topic is `[prefix.]<cluster>.<kind>`. The key is the node, to keep a node's messages in
order. The header `id` is the same at each repetition of a message.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent import PRODUCER
from ccagent.config.secret import read_secret, secret_path
from ccagent.errors import ConfigurationError, RejectedError, RetryableError, TooLargeError
from ccagent.log import logger, printable
from ccagent.machine.interpreter import install_command
from ccagent.net.error_texts import WITHHELD, repeats_secret
from ccagent.transports.base import ProbeResult, Transport
from ccagent.transports.kafka import faults
from ccagent.transports.kafka.settings import KafkaSettings, check_settings, fill_topic, is_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Report

    from ccagent.net.urls import Server
    from ccagent.records.message import Message

_TICK = 0.1

_DOWN_FOR = 2.0
"""Seconds until sending ends if all brokers are down; long enough for a reconnect."""

_LONGEST_CLOSE = 3.0

_LARGEST_MESSAGE = 64 * 1024 * 1024
"""Maximum bytes before compression. The effective limit is the broker's."""

_LARGEST_ANSWER = 8_000_000
"""Maximum bytes of one answer. The answer to `probe` contains all topics of the cluster."""

LARGEST_BODY = _LARGEST_MESSAGE - 4096
"""Maximum bytes of a body: the library also counts key, headers and framing."""

Reports = dict[int, "KafkaError | None"]
"""Results of messages by number; None: all in-sync replicas have the message."""

_LONGEST_ERROR = 400


class KafkaOutcome(NamedTuple):
    """The received reports, and the reason for an early end of the wait, if any."""

    reports: Reports
    given_up: str


class KafkaConnection:
    """An idempotent producer. After a failure it may still have messages: then close it.

    librdkafka sends in background threads, and reports the result of each message when polled.
    """

    def __init__(self, settings: KafkaSettings, servers: Sequence[Server], cluster: str) -> None:
        """Create the producer. Raise ConfigurationError, ImportError."""
        from confluent_kafka import KafkaException, Producer

        self.last: Report | None = None
        """The last acknowledged message."""
        self._settings = settings
        self._errors = _ConnectionErrors()
        self._user = self._secret = ""
        self._own = [*(server.host for server in servers), cluster, PRODUCER]
        if settings.password_file:
            self._user = settings.user or cluster
            self._secret = read_secret(settings.password_file)
            self._own.append(self._user)
        options = _build_options(settings, servers, self._user, self._secret)
        options["error_cb"] = self._errors.note
        try:
            # The producer is destroyed with its last reference; see `close`.
            self._held: list[Producer] = [
                Producer(options, logger=_Log(self._errors, self._secret, self._own))
            ]
        except KafkaException as error:
            raise ConfigurationError(error.args[0].str()) from error

    def send(self, batch: Sequence[tuple[str, Message]]) -> KafkaOutcome:
        """Send as many messages as fit into the library's queue, and wait for their reports."""
        from confluent_kafka import KafkaException

        reports: Reports = {}
        expected = 0
        for number, (topic, message) in enumerate(batch):
            try:
                self._held[0].produce(
                    topic,
                    message.body,
                    message.node.encode(),
                    headers=[("id", message.id.encode())],
                    timestamp=round(message.time * 1000),
                    on_delivery=partial(self._report, reports, number),
                )
            except BufferError:
                break
            except KafkaException as error:
                reports[number] = error.args[0]
                expected += 1
                break
            expected += 1
        return KafkaOutcome(reports, self._await_reports(reports, expected))

    def probe(self, topic: str) -> str:
        """Return the number of brokers, and whether a topic exists. Raise RetryableError."""
        from confluent_kafka import KafkaException

        producer, deadline = self._held[0], time.monotonic() + self._settings.time_limit.seconds
        while True:
            rest = deadline - time.monotonic()
            try:
                brokers = producer.list_topics(timeout=max(_TICK, min(rest, _DOWN_FOR)))
            except KafkaException as error:
                producer.poll(0)
                reason = self._explain_errors() or faults.shorten_text(
                    self._hide_secret(error.args[0].str())
                )
                if self._errors.are_lasting or rest <= _DOWN_FOR:
                    raise RetryableError(reason) from None  # the cause may repeat a secret
            else:
                known = "there" if topic in brokers.topics else "not there yet"
                return f"{len(brokers.brokers)} brokers; the topic {topic} is {known}"

    def explain(self, error: KafkaError, topic: str, message: Message) -> str:
        """Return the reason why a message was not accepted."""
        return faults.explain_refusal(error, topic, len(message.body), self._user)

    def close(self) -> None:
        """Destroy the producer with its remaining messages."""
        # The lookup of a name can't be interrupted. The thread then ends later.
        thread = threading.Thread(target=_destroy, args=(self._held,), name="kafka", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            _destroy(self._held)  # no thread can be started
        else:
            thread.join(_LONGEST_CLOSE)

    def _report(
        self, reports: Reports, number: int, error: KafkaError | None, report: Report
    ) -> None:
        reports[number] = error
        if error is None:
            self.last = report

    def _await_reports(self, reports: Reports, expected: int) -> str:
        """Wait for reports. Return the reason for an end before the last report, if any."""
        from confluent_kafka import KafkaException

        errors, limit = self._errors, self._settings.time_limit
        before, deadline = 0, time.monotonic() + limit.seconds
        while len(reports) < expected:
            try:
                self._held[0].flush(_TICK)
            except KafkaException as error:
                return faults.explain_end(
                    error.args[0].name(), self._hide_secret(error.args[0].str())
                )
            acknowledged = sum(error is None for error in reports.values())
            if acknowledged > before:
                before, deadline = acknowledged, time.monotonic() + limit.seconds
                errors.clear()
            elif errors.are_lasting:
                return self._explain_errors() or "no broker answers"
            elif time.monotonic() > deadline:
                reason = self._explain_errors()
                return f"no acknowledgement within {limit}" + (f": {reason}" if reason else "")
        return ""

    def _explain_errors(self) -> str:
        """Return the reason for a missing connection; empty if no error is known."""
        errors = self._errors
        text = self._hide_secret(errors.text or errors.logged)
        text = faults.explain_trouble(text, self._settings)
        if errors.name == "_AUTHENTICATION":
            return f"login as {self._user!r} failed: {text}"
        return text

    def _hide_secret(self, text: str) -> str:
        """Return a text of the library, unless it may contain the login."""
        if faults.is_of_library(text) or not repeats_secret(text, [self._secret], self._own):
            return text
        return WITHHELD


class _ConnectionErrors:
    """Errors of a producer's connections since the last acknowledgement."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.name = ""
        self.text = ""
        self.logged = ""
        self.down_since: float | None = None

    def note(self, error: KafkaError) -> None:
        name = error.name()
        if name == "_ALL_BROKERS_DOWN":
            self.down_since = self.down_since or time.monotonic()
        elif not self.text or ": Disconnected" in self.text or name == "_AUTHENTICATION":
            # The first error is the most precise, unless it is the end of a connection.
            self.name, self.text = name, error.str()

    @property
    def are_lasting(self) -> bool:
        if self.name == "_AUTHENTICATION":
            return True  # another attempt could lock the account
        return self.down_since is not None and time.monotonic() - self.down_since > _DOWN_FOR


class _Log:
    """Sends librdkafka's log to ccagent's log at level debug. Its errors are also raised."""

    def __init__(self, errors: _ConnectionErrors, secret: str, own: Sequence[str]) -> None:
        self._logger = logger.library().getChild("kafka")
        self._errors = errors
        self._secret = secret
        self._own = own

    def log(self, _level: int, text: str, *args: object) -> None:
        if args[:1] == ("FAIL",):
            # The library does not report an error if the broker closes a connection.
            self._errors.logged = self._errors.logged or str(args[-1])
        line = text % args
        is_safe = not repeats_secret(line, [self._secret], self._own)
        self._logger.debug("%s", line if is_safe else WITHHELD)


def _build_options(
    settings: KafkaSettings, servers: Sequence[Server], user: str, secret: str
) -> dict[str, Any]:
    """Return the configuration of librdkafka. Raise ConfigurationError."""
    milliseconds = round(settings.time_limit.seconds * 1000)
    protocol = "ssl" if settings.is_encrypted else "plaintext"
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(map(str, servers)),
        "security.protocol": f"sasl_{protocol}" if secret else protocol,
        "client.id": PRODUCER,
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": settings.compression,
        "message.max.bytes": _LARGEST_MESSAGE,
        "receive.message.max.bytes": _LARGEST_ANSWER,
        "message.timeout.ms": 0,  # the connection checks the time limit, and purges messages
        "socket.connection.setup.timeout.ms": min(max(milliseconds, 1000), 30_000),
        "topic.metadata.propagation.max.ms": min(milliseconds // 2, 10_000),
    }
    if secret:
        options |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": user,
            "sasl.password": secret,
        }
    if settings.ca_file:
        options["ssl.ca.location"] = settings.ca_file
    if settings.certificate_file:
        options["ssl.certificate.location"] = settings.certificate_file
        options["ssl.key.location"] = secret_path(settings.key_file)
    if settings.insecure:
        options["enable.ssl.certificate.verification"] = False
    return options


def _destroy(held: list[Producer]) -> None:
    from confluent_kafka import KafkaException

    producer = held.pop()
    with contextlib.suppress(KafkaException):
        producer.purge()
        producer.flush(_TICK)


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
