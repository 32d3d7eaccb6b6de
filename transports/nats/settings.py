"""The keys of a sink `nats://` or `tls://`, and their check."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta

from ccagent.config.secret import read_secret, secret_text
from ccagent.errors import ConfigurationError
from ccagent.machine.interpreter import install_command
from ccagent.net.tls import check_network
from ccagent.net.urls import Server, split_servers
from ccagent.transports.nats.login import NatsLogin, is_seed, parse_credentials
from ccagent.transports.nats.subject import check_subject
from ccagent.transports.network import NetworkSinkSettings

_PORT = 4222


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
    servers = split_servers(settings.url, _PORT)
    check_subject(settings.subject)
    chosen = {
        "password-file": settings.password_file,
        "token-file": settings.token_file,
        "nkey-file": settings.nkey_file,
        "creds-file": settings.creds_file,
    }
    names = [name for name, path in chosen.items() if path]
    if len(names) > 1:
        raise ConfigurationError(f"{' and '.join(names)} exclude each other")
    if bool(settings.user) != bool(settings.password_file):
        raise ConfigurationError("user and password-file need each other")
    check_network(
        settings,
        [server.host for server in servers],
        is_encrypted=is_encrypted(settings),
        # Seeds of nkeys and creds files only sign. They are not sent.
        secret=settings.password_file or settings.token_file,
    )
    read_login(settings)
    if (settings.nkey_file or settings.creds_file) and find_spec("nkeys") is None:
        raise ConfigurationError(f"{names[0]}: needs a library: {install_command('nkeys')}")
    return servers


def read_login(settings: NatsSettings) -> NatsLogin:
    """Return the login with its secrets. Raise ConfigurationError for an invalid file."""
    if settings.password_file:
        return NatsLogin(user=settings.user, password=read_secret(settings.password_file))
    if settings.token_file:
        return NatsLogin(token=read_secret(settings.token_file))
    if settings.nkey_file:
        seed = read_secret(settings.nkey_file)
        if not is_seed(seed):
            raise ConfigurationError(f"{settings.nkey_file}: not the seed of a user's nkey (SU...)")
        return NatsLogin(seed=seed)
    if settings.creds_file:
        login = parse_credentials(secret_text(settings.creds_file))
        if login is None:
            raise ConfigurationError(f"{settings.creds_file}: it holds no user's JWT and seed")
        return login
    return NatsLogin()


def get_scheme(settings: NatsSettings) -> str:
    """Return the scheme of the URL."""
    return settings.url.partition(":")[0].lower()


def is_encrypted(settings: NatsSettings) -> bool:
    """Return whether TLS is required: `tls://`, or `nats://` with certificates configured."""
    return bool(
        get_scheme(settings) == "tls"
        or settings.ca_file
        or settings.certificate_file
        or settings.insecure
    )
