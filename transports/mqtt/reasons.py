"""Texts for the reasons of brokers and paho: refusals and lost connections."""

from __future__ import annotations

import ssl

from paho.mqtt.client import WebsocketConnectionError

from ccagent.net.network_errors import explain_network_error
from ccagent.transports.mqtt.client import UnwantedPacketError

NOT_AUTHORIZED = 0x87
PACKET_TOO_LARGE = 0x95
PAYLOAD_INVALID = 0x99

PASSING = frozenset({0x91, 0x92, 0x97})
"""Reason codes of refusals that are not caused by the message."""

DUE_TO_MESSAGE = frozenset({
    0x80, 0x81, 0x82, 0x83, NOT_AUTHORIZED, 0x90, PACKET_TOO_LARGE, PAYLOAD_INVALID, 0x9A, 0x9B,
})  # fmt: skip
"""Reason codes of a DISCONNECT that a message may cause (MQTT 5, section 3.14.2.1)."""

_CLOSED = (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)

_REFUSED = {
    0x80: "an unspecified error",
    0x83: "a reason of its own",
    NOT_AUTHORIZED: "not authorized",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    PACKET_TOO_LARGE: "too large",
    0x97: "quota exceeded",
    PAYLOAD_INVALID: "payload format invalid",
}
"""Reason codes of PUBACK, PUBREC and PUBCOMP. Source: MQTT 5, section 2.4."""


def explain_refused_message(reason: int, topic: str, size: int) -> str:
    """Return the reason for a refused message."""
    why = _REFUSED.get(reason, f"reason {reason:#x}")
    return f"the broker refuses a message of {size} bytes to {topic}: {why}"


def explain_refused_connection(reason: str, *, user: str, status_topic: str) -> str:
    """Return the reason for a refused connection."""
    if reason == "Unsupported protocol version":
        return "the broker does not speak this version of MQTT: set protocol"
    if reason in {"Bad user name or password", "Not authorized"}:
        who = "wrong user or password" if user else "the broker wants a user and password"
        rights = f", or no right to {status_topic}" if status_topic else ""
        return f"the broker refuses the login ({reason.lower()}): {who}{rights}"
    if reason == "Retain not supported":
        return 'the broker retains no messages: set status-topic = "" and retain-sysinfo = false'
    return f"the broker refuses the connection: {reason.lower()}"


def explain_ended_connection(reason: str, client_id: str) -> str:
    """Return the reason for a DISCONNECT of the broker."""
    hint = f": another client has the id {client_id}" if reason == "Session taken over" else ""
    return f"the broker ended the connection: {reason.lower()}{hint}"


def explain_no_connection(
    error: Exception, *, path: str, seconds: float, is_encrypted: bool
) -> str:
    """Return the reason for a failed connection. path: of the WebSocket. seconds: time limit."""
    if isinstance(error, UnwantedPacketError):
        return str(error)
    if is_encrypted and isinstance(error, _CLOSED):
        error = ssl.SSLEOFError()
    if sentence := explain_network_error(error, seconds):
        return sentence
    if isinstance(error, WebsocketConnectionError | ValueError | IndexError):
        return f"no WebSocket for MQTT at {path}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
