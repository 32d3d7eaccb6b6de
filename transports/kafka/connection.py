"""A producer of librdkafka, and what it says of its brokers.

librdkafka sends from threads of its own and reports each message's fate when it is polled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent import PRODUCER
from ccagent.config.secret import read_secret, secret_path
from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger
from ccagent.transports.kafka import faults
from ccagent.transports.peer_text import WITHHELD, repeats_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Report

    from ccagent.records.message import Message
    from ccagent.transports.kafka.settings import KafkaSettings
    from ccagent.transports.urls import Server

_TICK = 0.1
_DOWN_FOR = 2.0
"""Seconds after which brokers that are all down are given up: long enough to reconnect."""
_LONGEST_CLOSE = 3.0
_LARGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes before compression; the limit that counts is the broker's."""

_LARGEST_ANSWER = 8_000_000
"""Bytes of one answer of a broker; that to `reach` names all topics of the cluster."""

LARGEST_BODY = _LARGEST_MESSAGE - 4096
"""Bytes of the largest body: the library counts key, headers and framing, too."""

Reports = dict[int, "KafkaError | None"]
"""What became of messages, by their number; None: all replicas in sync have it."""


class Outcome(NamedTuple):
    """The reports that came, and why the others are not worth waiting for, if so."""

    reports: Reports
    given_up: str


class Connection:
    """Produces idempotently. After giving up it may still hold messages: then close it."""

    def __init__(self, settings: KafkaSettings, servers: Sequence[Server], cluster: str) -> None:
        """Make the producer. Raises ConfigurationError, ImportError."""
        from confluent_kafka import KafkaException, Producer

        self.last: Report | None = None
        """The last message that was acknowledged."""
        self._settings = settings
        self._troubles = _Troubles()
        self._user = self._secret = ""
        self._own = [*(server.host for server in servers), cluster, PRODUCER]
        if settings.password_file:
            self._user = settings.user or cluster
            self._secret = read_secret(settings.password_file)
            self._own.append(self._user)
        options = _options(settings, servers, self._user, self._secret)
        options["error_cb"] = self._troubles.note
        try:
            # Destroyed where its last reference goes: see close.
            self._held: list[Producer] = [
                Producer(options, logger=_Log(self._troubles, self._secret, self._own))
            ]
        except KafkaException as error:
            raise ConfigurationError(error.args[0].str()) from None

    def send(self, batch: Sequence[tuple[str, Message]]) -> Outcome:
        """Send messages to topics, as many as the queue takes, and wait for their reports."""
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
        return Outcome(reports, self._awaited(reports, expected))

    def reach(self, topic: str) -> str:
        """Ask for the brokers, and tell of them and of a topic. Raises RetryableError."""
        from confluent_kafka import KafkaException

        producer, deadline = self._held[0], time.monotonic() + self._settings.time_limit.seconds
        while True:
            rest = deadline - time.monotonic()
            try:
                brokers = producer.list_topics(timeout=max(_TICK, min(rest, _DOWN_FOR)))
            except KafkaException as error:
                producer.poll(0)
                reason = self._explained_trouble() or faults.plain(
                    self._checked(error.args[0].str())
                )
                if self._troubles.are_lasting or rest <= _DOWN_FOR:
                    raise RetryableError(reason) from None
            else:
                known = "there" if topic in brokers.topics else "not there yet"
                return f"{len(brokers.brokers)} brokers; the topic {topic} is {known}"

    def explained(self, error: KafkaError, topic: str, message: Message) -> str:
        """Return why a message was not taken."""
        return faults.refusal(error, topic, len(message.body), self._user)

    def close(self) -> None:
        """Destroy the producer with all that it still holds."""
        # Looking up a name can't be interrupted: then the thread is left to end by itself.
        thread = threading.Thread(target=_destroy, args=(self._held,), name="kafka", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            _destroy(self._held)  # there are no more threads
        else:
            thread.join(_LONGEST_CLOSE)

    def _report(
        self, reports: Reports, number: int, error: KafkaError | None, report: Report
    ) -> None:
        reports[number] = error
        if error is None:
            self.last = report

    def _awaited(self, reports: Reports, expected: int) -> str:
        """Wait for reports; give the reason if it is given up."""
        from confluent_kafka import KafkaException

        troubles, limit = self._troubles, self._settings.time_limit
        before, deadline = 0, time.monotonic() + limit.seconds
        while len(reports) < expected:
            try:
                self._held[0].flush(_TICK)
            except KafkaException as error:
                return faults.end(error.args[0].name(), self._checked(error.args[0].str()))
            acknowledged = sum(error is None for error in reports.values())
            if acknowledged > before:
                before, deadline = acknowledged, time.monotonic() + limit.seconds
                troubles.clear()
            elif troubles.are_lasting:
                return self._explained_trouble() or "no broker answers"
            elif time.monotonic() > deadline:
                reason = self._explained_trouble()
                return f"no acknowledgement within {limit}" + (f": {reason}" if reason else "")
        return ""

    def _explained_trouble(self) -> str:
        troubles = self._troubles
        text = self._checked(troubles.text or troubles.logged)
        text = faults.trouble(text, self._settings)
        if troubles.name == "_AUTHENTICATION":
            return f"login as {self._user!r} failed: {text}"
        return text

    def _checked(self, text: str) -> str:
        """Return what the library says, unless a broker may have repeated our login in it."""
        if faults.is_of_library(text) or not repeats_secret(text, [self._secret], self._own):
            return text
        return WITHHELD


class _Troubles:
    """What a producer has said of its connections since something was last acknowledged."""

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
            # The first one says most, unless it only says that a connection ended.
            self.name, self.text = name, error.str()

    @property
    def are_lasting(self) -> bool:
        if self.name == "_AUTHENTICATION":
            return True  # trying again could lock the account
        return self.down_since is not None and time.monotonic() - self.down_since > _DOWN_FOR


class _Log:
    """Sends what librdkafka logs to our log, as details: what matters is in our errors."""

    def __init__(self, troubles: _Troubles, secret: str, own: Sequence[str]) -> None:
        self._logger = logger.library().getChild("kafka")
        self._troubles = troubles
        self._secret = secret
        self._own = own

    def log(self, _level: int, text: str, *args: object) -> None:
        if args[:1] == ("FAIL",):
            # Connections that the other side closes are no errors to the library.
            self._troubles.logged = self._troubles.logged or str(args[-1])
        line = text % args
        is_safe = not repeats_secret(line, [self._secret], self._own)
        self._logger.debug("%s", line if is_safe else WITHHELD)


def _options(
    settings: KafkaSettings, servers: Sequence[Server], user: str, secret: str
) -> dict[str, Any]:
    """Give the configuration of librdkafka. Raises ConfigurationError."""
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
        "message.timeout.ms": 0,  # we watch the time, and purge
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
