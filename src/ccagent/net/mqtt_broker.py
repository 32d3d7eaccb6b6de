"""Brokers of MQTT: keys, address, last will, and texts for their reasons. Imports no library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ccagent.errors import ConfigurationError
from ccagent.net.tls import ClientSettings, check_network
from ccagent.net.urls import split_url

if TYPE_CHECKING:
    from urllib.parse import SplitResult

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
ENCRYPTED = frozenset({"mqtts", "wss"})
WEBSOCKETS = frozenset({"ws", "wss"})

CLOSED = "the broker closed the connection"
REFUSED = 0x80
"""Reason codes from this value on are refusals."""

FIRST_NUMBERED = 60_000
LAST_NUMBERED = 65_535
"""Packet identifiers from the first to the last are chosen by the user of a connection."""

PACKET_TOO_LARGE = 0x95
PAYLOAD_INVALID = 0x99
_NOT_AUTHORIZED = 0x87

PASSING = frozenset({0x91, 0x92, 0x97})
"""Reason codes of refusals that are not caused by the message."""

DUE_TO_MESSAGE = frozenset({
    0x80, 0x81, 0x82, 0x83, _NOT_AUTHORIZED, 0x90, PACKET_TOO_LARGE, PAYLOAD_INVALID, 0x9A, 0x9B,
})  # fmt: skip
"""Reason codes of a DISCONNECT that a message may cause (MQTT 5, section 3.14.2.1)."""

_REFUSALS = {
    0x80: "an unspecified error",
    0x83: "a reason of its own",
    _NOT_AUTHORIZED: "not authorized",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    PACKET_TOO_LARGE: "too large",
    0x97: "quota exceeded",
    PAYLOAD_INVALID: "payload format invalid",
}
"""Reason codes of PUBACK, PUBREC and PUBCOMP. Source: MQTT 5, section 2.4."""


class _BrokerSettings(ClientSettings, Protocol):
    """The keys of a client of a broker: of a sink, or of an agent."""

    @property
    def protocol(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password_file(self) -> str: ...


class LastWill(NamedTuple):
    """The message that the broker publishes when the connection breaks."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False


class MqttOptions(NamedTuple):
    """Options of a connection. Password and certificates are read by each connection."""

    settings: _BrokerSettings
    client_id: str
    will: LastWill | None
    qos: int = 1
    """The QoS that the broker must offer."""
    qos_hint: str = ""
    """The remedy if it does not."""
    retains: bool = False
    """True if the broker must retain some messages."""
    is_passing: bool = False
    """True if the broker must discard the session at the end of the connection."""


class ReceivedMessage(NamedTuple):
    """A received message.

    number: packet identifier. is_repeated: possibly delivered before (DUP).
    """

    topic: str
    payload: bytes
    number: int
    qos: int
    is_repeated: bool
    is_retained: bool


class NumberedReply(NamedTuple):
    """The broker's reply to a message with a kept packet identifier.

    is_released: PUBREC at QoS 2, the broker has the message.
    """

    number: int
    is_released: bool
    reason: int


class MqttLostError(Exception):
    """The connection failed or ended, or no answer arrived within the time limit."""

    def __init__(self, reason: str, *, is_closed: bool = False, code: int = 0) -> None:
        super().__init__(reason)
        self.is_closed = is_closed
        """True if the broker closed a working connection without another reason.

        A message may be the cause.
        """
        self.code = code
        """The reason code of the broker's DISCONNECT; 0 if it gave none."""


def check_broker(settings: _BrokerSettings) -> SplitResult:
    """Check URL, login and TLS; return the parts of the URL. Raise ConfigurationError."""
    target = split_url(settings.url)
    if target.fragment or (
        target.scheme not in WEBSOCKETS and (target.path.strip("/") or target.query)
    ):
        raise ConfigurationError(
            f"url: expected {target.scheme}://HOST[:PORT]; the topic is set by the key topic"
        )
    if bool(settings.user) != bool(settings.password_file):
        raise ConfigurationError("user and password-file need each other")
    check_network(
        settings,
        [target.hostname or ""],
        is_encrypted=target.scheme in ENCRYPTED,
        secret=settings.password_file,
    )
    return target


def explain_refused_message(reason: int, topic: str, size: int) -> str:
    """Return the reason for a refused message."""
    why = _REFUSALS.get(reason, f"reason {reason:#x}")
    return f"the broker refuses a message of {size} bytes to {topic}: {why}"


def explain_refused_connection(reason: str, options: MqttOptions) -> str:
    """Return the reason for a refused connection."""
    if reason == "Unsupported protocol version":
        return "the broker does not speak this version of MQTT: set protocol"
    if reason in {"Bad user name or password", "Not authorized"}:
        who = (
            "wrong user or password"
            if options.settings.user
            else "the broker wants a user and password"
        )
        rights = f", or no right to {options.will.topic}" if options.will else ""
        return f"the broker refuses the login ({reason.lower()}): {who}{rights}"
    if reason == "Retain not supported":
        return 'the broker retains no messages: set status-topic = "" and retain-sysinfo = false'
    return f"the broker refuses the connection: {reason.lower()}"


def explain_ended_connection(reason: str, client_id: str) -> str:
    """Return the reason for a DISCONNECT of the broker."""
    hint = f": another client has the id {client_id}" if reason == "Session taken over" else ""
    return f"the broker ended the connection: {reason.lower()}{hint}"
