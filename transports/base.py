"""The base class of transports, and the settings of those with a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.config import common_keys
from ccagent.config.common_keys import SinkSettings
from ccagent.config.duration import Duration
from ccagent.registry import load_transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message

__all__ = [
    "NetworkSinkSettings", "ProbeResult", "SinkSettings", "Transport", "build_transport",
    "transport_class",
]  # fmt: skip


class ProbeResult(NamedTuple):
    """The result of a probe: a try without delivery.

    message: the answer, as a phrase. clock_offset: seconds by which this clock is ahead of the
    receiver's, None if unknown; uncertainty: its maximum error in seconds.
    """

    message: str
    clock_offset: float | None = None
    uncertainty: float = 0.0


class Transport(ABC):
    """Delivers messages to one receiver. Only one thread at a time may use it."""

    Settings: ClassVar[type[SinkSettings]] = SinkSettings
    is_network: ClassVar[bool] = True
    """False for a receiver on this machine. Its queue is in memory."""

    is_one_shot: bool = False
    """True in a one-shot command, which may run at the same time as the daemon."""

    largest_body: int | None = None
    """Maximum body in bytes that the receiver accepts; None until it is known."""

    answer: str = ""
    """In a one-shot command the receiver's answer to the last accepted message, as a phrase."""

    def __init__(self, settings: SinkSettings) -> None:  # noqa: B027 - optional
        """Check the settings without connecting. Raise ConfigurationError if they are invalid."""

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Deliver messages in order. Return when the receiver has accepted all of them.

        Raise RetryableError or RejectedError. Its `delivered` counts the messages accepted before.
        """

    def probe(self, message: Message) -> ProbeResult | None:  # noqa: ARG002 - optional
        """Connect and log in as for this message, without delivery and side effects.

        Return None if only a delivery can show whether the receiver works. Raise as `send` does.
        """
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections and files."""


def transport_class(url: str) -> type[Transport]:
    """Return the class for a URL's scheme. Raise ConfigurationError for an unknown scheme."""
    found: type[Transport] = load_transport(url)
    return found


def build_transport(settings: SinkSettings) -> Transport:
    """Return the transport of a checked sink."""
    return transport_class(settings.url)(settings)


class NetworkSinkSettings(SinkSettings, frozen=True, kw_only=True):
    """Keys of every sink on the network."""

    renamed: ClassVar[dict[str, str]] = {"allow-clear": "allow-cleartext"}

    user: Annotated[str, Meta(description="user of the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    allow_cleartext: common_keys.AllowCleartext = False
    time_limit: Annotated[
        Duration, Meta(description="maximum time for a connection, and for each answer")
    ] = Duration("10s")
