"""The keys of a sink `kafka://` or `kafkas://`, their check, and names of topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ccagent.errors import ConfigurationError
from ccagent.net.tls import check_network
from ccagent.net.urls import split_servers
from ccagent.transports import templates
from ccagent.transports.base import NetworkSinkSettings

if TYPE_CHECKING:
    from ccagent.net.urls import Server
    from ccagent.records.message import Message

_VALID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_PORTS = {"kafka": 9092, "kafkas": 9093}


def check_template(template: str) -> None:
    """Check a template of a topic. Raise ConfigurationError if it is invalid."""
    if template and not is_topic(templates.check_template("topic", template)):
        raise ConfigurationError("topic: letters, digits, '.', '_' and '-' only, 249 at most")


def fill_topic(template: str, message: Message) -> str:
    """Return the topic of a message. The dot after an empty prefix is omitted."""
    if not template:
        return message.topic
    return templates.fill_template(template, templates.get_values(message), ".")


def is_topic(name: str) -> bool:
    """Return whether a name is valid for a topic."""
    return _VALID.fullmatch(name) is not None


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


def check_settings(settings: KafkaSettings) -> list[Server]:
    """Check the keys and return the servers. Raise ConfigurationError."""
    servers = split_servers(settings.url, _PORTS[settings.scheme])
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    check_template(settings.topic)
    check_network(
        settings,
        [server.host for server in servers],
        is_encrypted=settings.is_encrypted,
        secret=settings.password_file,
    )
    return servers
