"""The keys of a sink `nats://` or `tls://`, and what they must not be."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from msgspec import Meta

from ccagent.config.secret import read_secret, secret_text
from ccagent.errors import ConfigurationError
from ccagent.machine.interpreter import install_command
from ccagent.transports.nats.login import Login, credentials, is_seed
from ccagent.transports.nats.subject import check_subject
from ccagent.transports.network import NetworkSettings, check_network
from ccagent.transports.urls import Server, split_servers

_PORT = 4222


class NatsSettings(NetworkSettings, frozen=True, kw_only=True):
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


def checked(settings: NatsSettings) -> list[Server]:
    """Split the URL and refuse what would leak or can't work. Raises ConfigurationError."""
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
        # The seeds of nkeys and creds files only sign: they never travel.
        secret=settings.password_file or settings.token_file,
    )
    read_login(settings)
    if (settings.nkey_file or settings.creds_file) and find_spec("nkeys") is None:
        raise ConfigurationError(f"{names[0]}: needs a library: {install_command('nkeys')}")
    return servers


def read_login(settings: NatsSettings) -> Login:
    """Read the secrets. Raises ConfigurationError."""
    if settings.password_file:
        return Login(user=settings.user, password=read_secret(settings.password_file))
    if settings.token_file:
        return Login(token=read_secret(settings.token_file))
    if settings.nkey_file:
        seed = read_secret(settings.nkey_file)
        if not is_seed(seed):
            raise ConfigurationError(f"{settings.nkey_file}: not the seed of a user's nkey (SU...)")
        return Login(seed=seed)
    if settings.creds_file:
        login = credentials(secret_text(settings.creds_file))
        if login is None:
            raise ConfigurationError(f"{settings.creds_file}: no user's JWT and seed in it")
        return login
    return Login()


def scheme_of(settings: NatsSettings) -> str:
    """Give the scheme of the URL."""
    return settings.url.partition(":")[0].lower()


def is_encrypted(settings: NatsSettings) -> bool:
    """Tell whether TLS is a must. `nats://` with certificates configured means it, too."""
    return bool(
        scheme_of(settings) == "tls"
        or settings.ca_file
        or settings.certificate_file
        or settings.insecure
    )
