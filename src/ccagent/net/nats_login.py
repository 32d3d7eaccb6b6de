"""Servers, login and TLS of clients of NATS: the check of their keys, and the options of a session.

nats-py is not needed here: a configuration is checked without it.
"""

from __future__ import annotations

import base64
import binascii
import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ccagent.config.secret import read_secret, secret_text
from ccagent.errors import ConfigurationError
from ccagent.machine.interpreter import install_command
from ccagent.net.tls import ClientSettings, check_network, make_tls_context
from ccagent.net.urls import Server, split_servers

if TYPE_CHECKING:
    import ssl

_PORT = 4222
_SEED = re.compile(r"SU[A-Z2-7]{56}")
_CREDENTIALS = re.compile(
    r"-BEGIN NATS USER JWT-+\s+(?P<jwt>[\w.-]+)\s.*-BEGIN USER NKEY SEED-+\s+(?P<seed>\w+)\s",
    re.ASCII | re.DOTALL,
)


class NatsLogin(NamedTuple):
    """The login at a server. Unused fields are empty. `seed` only signs and is not sent."""

    user: str = ""
    password: str = ""
    token: str = ""
    seed: str = ""
    jwt: str = ""

    def options(self) -> dict[str, Any]:
        """Return the arguments of nats-py's `connect`."""
        if self.jwt:
            return {"user_jwt_cb": self.jwt.encode, "signature_cb": self._sign}
        if self.seed:
            return {"nkeys_seed_str": self.seed}
        if self.token:
            return {"token": self.token}
        return {"user": self.user, "password": self.password} if self.password else {}

    @property
    def secrets(self) -> list[str]:
        """The secret parts, for the filter of texts."""
        return [*filter(None, (self.password, self.token, self.seed, self.jwt))]

    def _sign(self, nonce: str) -> bytes:
        nkeys: Any = import_module("nkeys")  # the package has no types
        key = nkeys.from_seed(bytearray(self.seed.encode()))
        return base64.b64encode(key.sign(nonce.encode()))


class NatsClientSettings(ClientSettings, Protocol):
    """The keys of a client of NATS: of a sink, or of the controls."""

    @property
    def user(self) -> str:
        """User of the password."""
        ...

    @property
    def password_file(self) -> str:
        """File with the password."""
        ...

    @property
    def token_file(self) -> str:
        """File with a token."""
        ...

    @property
    def nkey_file(self) -> str:
        """File with the seed of a user's nkey."""
        ...

    @property
    def creds_file(self) -> str:
        """File with a user's JWT and seed."""
        ...


class NatsOptions(NamedTuple):
    """Options of a session. seconds: time limit of the login, and of each answer.

    name: of this client. context: checks certificates; with a context, TLS is required.
    has_certificate: the context has a client certificate.
    """

    name: str
    login: NatsLogin
    context: ssl.SSLContext | None
    has_certificate: bool
    seconds: float


def check_client(settings: NatsClientSettings) -> list[Server]:
    """Check the keys and return the servers. Raise ConfigurationError."""
    servers = split_nats_servers(settings)
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
    _read_login(settings)
    if (settings.nkey_file or settings.creds_file) and find_spec("nkeys") is None:
        raise ConfigurationError(f"{names[0]}: needs a library: {install_command('nkeys')}")
    return servers


def split_nats_servers(settings: NatsClientSettings) -> list[Server]:
    """Return the servers of the URL. Raise ConfigurationError."""
    return split_servers(settings.url, _PORT)


def read_options(settings: NatsClientSettings, name: str, seconds: float) -> NatsOptions:
    """Read secrets and certificates. Raise ConfigurationError for an invalid file."""
    return NatsOptions(
        name=name,
        login=_read_login(settings),
        context=make_tls_context(settings) if is_encrypted(settings) else None,
        has_certificate=bool(settings.certificate_file),
        seconds=seconds,
    )


def name_server(settings: NatsClientSettings, server: Server) -> str:
    """Return the URL of one of the servers, for texts."""
    return f"{_get_scheme(settings)}://{server}"


def is_encrypted(settings: NatsClientSettings) -> bool:
    """Return whether TLS is required: `tls://`, or `nats://` with certificates configured."""
    return bool(
        _get_scheme(settings) == "tls"
        or settings.ca_file
        or settings.certificate_file
        or settings.insecure
    )


def _get_scheme(settings: NatsClientSettings) -> str:
    return settings.url.partition(":")[0].lower()


def _read_login(settings: NatsClientSettings) -> NatsLogin:
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


def parse_credentials(text: str) -> NatsLogin | None:
    """Return a user's JWT and seed from the text of a creds file; None if they are missing."""
    found = _CREDENTIALS.search(text)
    if found is None or not is_seed(found["seed"]):
        return None
    return NatsLogin(seed=found["seed"], jwt=found["jwt"])


def is_seed(text: str) -> bool:
    """Return whether a text is a user's seed: base32 with a CRC-16 at the end."""
    if not _SEED.fullmatch(text):
        return False
    raw = base64.b32decode(text + "======")
    return binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")
