"""Texts for the errors of librdkafka and brokers."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.net.error_texts import explain_certificate
from ccagent.net.tls import make_tls_context

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from ccagent.transports.kafka.settings import KafkaSettings

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


def is_of_library(text: str) -> bool:
    """Return whether a text contains no text of a broker."""
    return _LIBRARY.fullmatch(text) is not None


def explain_refusal(error: KafkaError, topic: str, size: int, user: str) -> str:
    """Return the reason why a topic did not accept a message of `size` bytes."""
    match error.name():
        case "UNKNOWN_TOPIC_OR_PART" | "_UNKNOWN_TOPIC":
            return f"there is no topic {topic!r}, and the broker creates none"
        case "TOPIC_AUTHORIZATION_FAILED":
            who = f"user {user!r}" if user else "a client without a login"
            return f"{who} may not write to the topic {topic!r}"
        case "MSG_SIZE_TOO_LARGE" | "RECORD_LIST_TOO_LARGE":
            return (
                f"a message of {size} bytes is more than the topic {topic!r} takes: "
                "raise its max.message.bytes, or set compression"
            )
        case "INVALID_TIMESTAMP":
            return f"the topic {topic!r} refuses the time of the message: check the clocks"
        case name:
            return f"topic {topic!r}: {shorten_text(error.str())} ({name})"


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
