"""The login of the control service, with keys, checks and secrets of a sink `nats://`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.transports.nats.settings import NatsSettings, check_settings

if TYPE_CHECKING:
    from ccagent.controls.settings import ControlsSettings
    from ccagent.net.urls import Server

_KEYS = (
    "url", "user", "password_file", "token_file", "nkey_file", "creds_file", "ca_file",
    "certificate_file", "key_file", "insecure", "allow_cleartext",
)  # fmt: skip


def as_sink(settings: ControlsSettings) -> NatsSettings:
    """Return the settings of a sink with the same URL and login."""
    found = msgspec.structs.asdict(settings)
    return NatsSettings(**{key: found[key] for key in _KEYS})


def check_login(settings: ControlsSettings) -> list[Server]:
    """Check URL, login and certificates. Return the servers. Raise ConfigurationError."""
    return check_settings(as_sink(settings))
