"""A connection of a sink to Kafka: its keys, a producer of librdkafka, and texts for its errors."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from ccagent import PRODUCER
from ccagent.config.secret import read_secret, secret_path
from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger
from ccagent.net.error_texts import WITHHELD, explain_certificate, repeats_secret
from ccagent.net.tls import make_tls_context
from ccagent.transports.base import NetworkSinkSettings

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

_BROKER = re.compile(r"(?:\[thrd:\S+\]: )?(?:\w+://)?(\S+?)/(?:bootstrap|\d+): ")
_WHILE = re.compile(r"(?: \(see [^()]*\))? \(after \d+ms in state \w+.*\)$")
_PLACE_IN_OPENSSL = re.compile(r"(?:\S+\.c:\d+:\w+ )?error:[0-9A-F]+:SSL routines:\w*:")
_UNTRUSTED = "certificate verify failed"
_CLOSED_AT_ONCE = re.compile(r"Disconnected(: | \().* in state (APIVERSION_QUERY|SSL_HANDSHAKE)")
_LIBRARY = re.compile(
    r"(?:\[thrd:\S+\]: )?(?:\S+: )?"
    r"(?:Connect to \S+ failed: [A-Z][\w ]+|Failed to resolve '[^']*': [\w ,-]+"
    r"|Disconnected(?:: [\w ]+)?|\d+/\d+ brokers are down)"
    r"(?: \(see [^()]*\))?(?: \(after [^()]*\))?"
)
"""Texts of the library about connections that contain no text of a broker."""

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
INVALID = frozenset({"INVALID_MSG_SIZE", "INVALID_RECORD", "_INVALID_DIFFERENT_RECORD"})
"""Errors caused by the message, or by another message of the same batch."""

ABOUT_MESSAGE = frozenset({
    "INVALID_TIMESTAMP", "POLICY_VIOLATION", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION",
    "UNKNOWN", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
})  # fmt: skip
"""Errors of a message or topic. The message may succeed later, and others now."""

Reports = dict[int, "KafkaError | None"]
"""Results of messages by number; None: all in-sync replicas have the message."""


class KafkaSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `kafka://` or `kafkas://`."""

    user: Annotated[str, Meta(description="user of the password; empty: the cluster's name")] = ""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Meta(description="SASL mechanism of the login"),
    ] = "PLAIN"
    topic: Annotated[
        str,
        Meta(description="with {cluster}, {node}, {kind}, {prefix}; empty: [PREFIX.]CLUSTER.KIND"),
    ] = ""
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], Meta(description="compression of batches")
    ] = "none"

    @property
    def scheme(self) -> str:
        """`kafka` or `kafkas`."""
        return self.url.partition(":")[0].lower()

    @property
    def is_encrypted(self) -> bool:
        """True for connections over TLS."""
        return self.scheme == "kafkas"


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
                reason = self._explain_errors() or shorten_text(
                    self._hide_secret(error.args[0].str())
                )
                if self._errors.are_lasting or rest <= _DOWN_FOR:
                    raise RetryableError(reason) from None  # the cause may repeat a secret
            else:
                known = "there" if topic in brokers.topics else "not there yet"
                return f"{len(brokers.brokers)} brokers; the topic {topic} is {known}"

    def explain(self, error: KafkaError, topic: str, message: Message) -> str:
        """Return the reason why a topic did not accept a message."""
        match error.name():
            case "UNKNOWN_TOPIC_OR_PART" | "_UNKNOWN_TOPIC":
                return f"there is no topic {topic!r}, and the broker creates none"
            case "TOPIC_AUTHORIZATION_FAILED":
                who = f"user {self._user!r}" if self._user else "a client without a login"
                return f"{who} may not write to the topic {topic!r}"
            case "MSG_SIZE_TOO_LARGE" | "RECORD_LIST_TOO_LARGE":
                return (
                    f"a message of {len(message.body)} bytes is more than the topic {topic!r} "
                    "takes: raise its max.message.bytes, or set compression"
                )
            case "INVALID_TIMESTAMP":
                return f"the topic {topic!r} refuses the time of the message: check the clocks"
            case name:
                return f"topic {topic!r}: {shorten_text(error.str())} ({name})"

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
                return explain_end(error.args[0].name(), self._hide_secret(error.args[0].str()))
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
        text = explain_trouble(text, self._settings)
        if errors.name == "_AUTHENTICATION":
            return f"login as {self._user!r} failed: {text}"
        return text

    def _hide_secret(self, text: str) -> str:
        """Return a text of the library, unless it may contain the login."""
        if _LIBRARY.fullmatch(text) or not repeats_secret(text, [self._secret], self._own):
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


def explain_end(name: str, text: str) -> str:
    """Return the reason for a fatal error of a producer, from its name and text."""
    text = shorten_text(text)
    if name == "CLUSTER_AUTHORIZATION_FAILED":
        text += ": the user needs the right IdempotentWrite"
    return text


def explain_trouble(text: str, settings: KafkaSettings) -> str:
    """Return the reason for a missing connection, from a text of librdkafka."""
    broker = _BROKER.match(text)
    if broker is not None and _UNTRUSTED in text:
        fault = _find_certificate_fault(broker[1], settings)
        if fault:
            return f"{broker[1]}: {explain_certificate(fault)}"
    if broker is not None and _CLOSED_AT_ONCE.match(text, broker.end()):
        expected = "does not speak TLS" if settings.is_encrypted else "wants TLS (kafkas://)"
        hint = f"perhaps the broker {expected}"
        return f"{shorten_text(text)}: {hint}"
    return shorten_text(text)


def shorten_text(text: str) -> str:
    """Return a text of librdkafka without its internal details."""
    text = _WHILE.sub("", text).replace("ipv4#", "").replace("ipv6#", "")
    text = _PLACE_IN_OPENSSL.sub("", text)
    broker = _BROKER.match(text)
    if broker is None:
        return text
    rest = text[broker.end() :]
    return rest if broker[1] in rest else f"{broker[1]}: {rest}"


def _find_certificate_fault(broker: str, settings: KafkaSettings) -> str:
    """Return the reason why a certificate is not trusted; empty for any other failure.

    It connects to the broker, because librdkafka does not report this reason.
    """
    host, _, port = broker.rpartition(":")
    host = host.strip("[]")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=2) as connected,
            make_tls_context(settings).wrap_socket(connected, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (ConfigurationError, OSError, ValueError):
        return ""
