"""The keys of a sink `nats://` or `tls://`, and their check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ccagent.net.nats_login import check_client
from ccagent.transports.nats.subject import check_subject
from ccagent.transports.network import NetworkSinkSettings

if TYPE_CHECKING:
    from ccagent.net.urls import Server


class NatsSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `nats://` or `tls://`."""

    jetstream: Annotated[
        bool, Meta(description="publish into a stream, which acknowledges every message")
    ] = False
    subject: Annotated[
        str,
        Meta(
            description="subject with {cluster}, {node}, {kind} and {prefix};"
            " empty: [prefix.]<cluster>.<kind>"
        ),
    ] = ""
    token_file: Annotated[str, Meta(description="file with a token")] = ""
    nkey_file: Annotated[str, Meta(description="file with the seed of a user's nkey")] = ""
    creds_file: Annotated[str, Meta(description="file with a user's JWT and seed (.creds)")] = ""


def check_settings(settings: NatsSettings) -> list[Server]:
    """Check the keys and return the servers. Raise ConfigurationError."""
    check_subject(settings.subject)
    return check_client(settings)
