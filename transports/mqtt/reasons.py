"""Why a broker can't be reached or doesn't take a message, in sentences."""

from __future__ import annotations

import socket
import ssl

from paho.mqtt.client import WebsocketConnectionError

from ccagent.transports.mqtt.client import UnwantedError

NOT_AUTHORIZED = 0x87
PACKET_TOO_LARGE = 0x95
PAYLOAD_INVALID = 0x99

PASSING = frozenset({0x91, 0x92, 0x97})
"""Reason codes of refused messages that have nothing to do with the message."""

DUE_TO_MESSAGE = frozenset({
    0x80, 0x81, 0x82, 0x83, NOT_AUTHORIZED, 0x90, PACKET_TOO_LARGE, PAYLOAD_INVALID, 0x9A, 0x9B,
})  # fmt: skip
"""Reason codes of a DISCONNECT that a message may be to blame for (MQTT 5, section 3.14.2.1)."""

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
"""Source: MQTT 5, section 2.4; the codes that PUBACK, PUBREC and PUBCOMP may have."""


def refused_message(reason: int, topic: str, size: int) -> str:
    """Say why the broker refuses a message."""
    why = _REFUSED.get(reason, f"reason {reason:#x}")
    return f"the broker refuses a message of {size} bytes to {topic}: {why}"


def refused_connection(reason: str, *, user: str, status_topic: str) -> str:
    """Say why the broker refuses the connection."""
    if reason == "Unsupported protocol version":
        return "the broker does not speak this version of MQTT: set protocol"
    if reason in {"Bad user name or password", "Not authorized"}:
        who = "wrong user or password" if user else "it wants a user and password"
        rights = f", or no right to {status_topic}" if status_topic else ""
        return f"the broker refuses the login ({reason.lower()}): {who}{rights}"
    if reason == "Retain not supported":
        return 'the broker retains no messages: set status-topic = "" and retain-sysinfo = false'
    return f"the broker refuses the connection: {reason.lower()}"


def ended_connection(reason: str, client_id: str) -> str:
    """Say why the broker has ended the connection, when it says so."""
    hint = f": another client calls itself {client_id}" if reason == "Session taken over" else ""
    return f"the broker ended the connection: {reason.lower()}{hint}"


def no_connection(
    error: Exception, *, host: str, path: str, seconds: float, is_encrypted: bool
) -> str:
    """Return why there is no connection, or no longer one."""
    if isinstance(error, UnwantedError):
        return str(error)
    if type(error) is UnicodeError:
        return f"the name {host} does not resolve: it is no host name"
    if isinstance(error, socket.gaierror):
        return f"the name {host} does not resolve: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, WebsocketConnectionError | ValueError | IndexError):
        return f"no WebSocket for MQTT at {path}"
    if isinstance(error, ssl.SSLEOFError) or (is_encrypted and isinstance(error, ConnectionError)):
        return "TLS is broken off: perhaps none is spoken there, or a certificate-file is wanted"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
