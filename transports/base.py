"""The base class of transports; settings of those with a network, and templates of their topics.

A template of a topic, a subject or a URL is text with placeholders such as `{cluster}`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.config import common_keys
from ccagent.config.common_keys import SinkSettings
from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.registry import load_transport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccagent.records.message import Message

__all__ = [
    "PLACEHOLDERS", "NetworkSinkSettings", "ProbeResult", "SinkSettings", "Transport",
    "build_transport", "check_template", "fill_template", "get_values", "transport_class",
]  # fmt: skip

PLACEHOLDERS = ("prefix", "cluster", "node", "kind")
"""The values of a message that a template may contain."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


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


def check_template(key: str, template: str, known: tuple[str, ...] = PLACEHOLDERS) -> str:
    """Return a template with `x` in place of its placeholders.

    Raise ConfigurationError with the configuration key if the template has other braces.
    """
    rest = re.sub(r"\{(?:" + "|".join(known) + r")\}", "x", template)
    if "{" in rest or "}" in rest:
        names = ", ".join(f"{{{name}}}" for name in known)
        raise ConfigurationError(f"{key}: the placeholders are {names}; no other braces")
    return rest


def get_values(message: Message) -> dict[str, str]:
    """Return the values of a message by placeholder."""
    return {
        "prefix": message.prefix,
        "cluster": message.cluster,
        "node": message.node,
        "kind": message.kind,
    }


def fill_template(template: str, values: Mapping[str, str], separator: str = "") -> str:
    """Return a template with values. The separator after an empty prefix is removed."""
    if separator and not values["prefix"]:
        template = template.replace("{prefix}" + separator, "")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
