"""Access to the exporter: its certificate, the names of clients, users and their passwords.

The certificate and the file of users are read again when they change. A line of the file of users
is `NAME:scrypt$LOG2_N$R$P$SALT$HASH`, with salt and hash in base64 (RFC 7914).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ccagent.config.secret import RenewedFiles, secret_path, secret_text
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.net.urls import network

if TYPE_CHECKING:
    import socket

    from ccagent.exporter.settings import ExporterSettings

_LOOK_AT_CERTIFICATE_EVERY = 5.0
_OPEN_TO_OTHERS = 0o007
_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
_STEPS = 20

_LOOK_AT_USERS_EVERY = 2.0
_AT_ONCE = 5.0
_NEW_AFTER = 1.0
_MOST_CLIENTS = 1000

_LOG2_N, _R, _P = 13, 8, 4
"""Costs 8 MiB and about 80 ms, once per user and start of the daemon."""
_SALT, _HASH = 16, 32
_MOST_MEMORY = 64 * 1024 * 1024
_LINE = re.compile(
    r"([^:\s]{1,128}):scrypt\$([0-9]{1,2})\$([0-9]{1,2})\$([0-9]{1,2})"
    r"\$([A-Za-z0-9+/=]{8,128})\$([A-Za-z0-9+/=]{16,256})",
    re.ASCII,
)
_LONGEST_LOGIN = 2048


class TlsContext:
    """The TLS of client connections. A renewed certificate is used within seconds."""

    def __init__(self, settings: ExporterSettings) -> None:
        """Read the files. Raise ConfigurationError if one is invalid or can't be read."""
        self._settings = settings
        self._context = RenewedFiles(
            "exporter: certificate",
            (settings.certificate_file, secret_path(settings.key_file), settings.client_ca_file),
            lambda: _make_context(settings),
            _LOOK_AT_CERTIFICATE_EVERY,
        )

    def wrap(self, connected: socket.socket) -> ssl.SSLSocket:
        """Return the socket with TLS, before the handshake. Raise OSError if that fails."""
        return self._context.get().wrap_socket(
            connected, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def accepts(self, connected: ssl.SSLSocket) -> bool:
        """Return whether a client's certificate has one of `client-names`, or none are set."""
        allowed = self._settings.client_names
        if not allowed:
            return True
        certificate = cast("dict[str, Any]", connected.getpeercert() or {})
        names = {value for _, value in certificate.get("subjectAltName", ())}
        if names.isdisjoint(allowed):
            logger.warning("exporter: a client's certificate has none of client-names")
            return False
        return True


def _make_context(settings: ExporterSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake costs the server more than the client: one per connection is enough.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        key = secret_path(settings.key_file)
        if os.stat(key).st_mode & _OPEN_TO_OTHERS:
            raise ConfigurationError(f"key-file: {key}: others can read this key: chmod o= it")
        context.load_cert_chain(settings.certificate_file, key, password=_refuse_password)
    except OSError as error:  # includes ssl.SSLError
        reason = explain_certificate(error)
        place = error.filename or f"{settings.certificate_file}, {settings.key_file}"
        raise ConfigurationError(f"certificate-file, key-file: {place}: {reason}") from error
    except ValueError as error:
        raise ConfigurationError(f"key-file: {settings.key_file}: {error}") from error
    if settings.client_ca_file:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"client-ca-file: {settings.client_ca_file}: {reason}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def explain_certificate(error: OSError) -> str:
    """Return the reason in words for which a certificate and its key can't be used."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason: str | None = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if reason in {None, "", "NO_START_LINE"}:  # OpenSSL reports `[SSL] PEM lib`
        return "no certificate, or no key, in PEM"
    return str(error.strerror or error)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; a daemon can't ask for its password")


def find_certificate_end(certificate_file: str, key_file: str) -> float:
    """Return the expiry time of a certificate in seconds since 1970.

    Raise ConfigurationError if the certificate has expired or can't be used.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(certificate_file, key_file)
        client.load_verify_locations(certificate_file)
        end = _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise ConfigurationError(f"certificate-file: {certificate_file}: has expired") from None
        raise ConfigurationError(
            f"certificate-file: {certificate_file}: {error.verify_message}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"certificate-file: {certificate_file}: {error}") from error
    return float(ssl.cert_time_to_seconds(end))


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Return notAfter of the server's certificate. Raise ssl.SSLError if the handshake fails."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_STEPS):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is asking:
                return str((asking.getpeercert() or {}).get("notAfter", ""))
    raise ssl.SSLError("the handshake does not end")


class GuessBudgets:
    """Budgets of password attempts by address. A guessing client does not delay the others.

    IPv6 addresses share a budget per /64 network: one client may own all its addresses.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, tuple[float, float]] = {}

    def spend(self, peer: str) -> bool:
        """Return whether a client may try a password now. peer: the client's address."""
        now = time.monotonic()
        key = network(peer)
        left, moment = self._budgets.get(key, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - moment) / _NEW_AFTER)
        if len(self._budgets) >= _MOST_CLIENTS and key not in self._budgets:
            self._budgets.clear()
        is_permitted = left >= 1
        self._budgets[key] = (left - 1 if is_permitted else left, now)
        return is_permitted

    def restore(self, peer: str) -> None:
        """Reset the budget of a client after a successful login."""
        self._budgets.pop(network(peer), None)


class PasswordHash(NamedTuple):
    """A hash with its parameters: n, r and p of scrypt, and the salt."""

    n: int
    r: int
    p: int
    salt: bytes
    value: bytes

    def matches(self, password: bytes) -> bool:
        """Return whether a password has this hash. The comparison takes constant time."""
        found = _scrypt(password, self)
        return hmac.compare_digest(found, self.value)


class BusyError(Exception):
    """The client has guessed too many passwords, or the check of another login takes too long."""


def make_line(name: str, password: str) -> str:
    """Return a line of the users file.

    Raise ConfigurationError for an invalid name, and for an empty or too long password.
    """
    if not re.fullmatch(r"[^#:\s][^:\s]{0,127}", name) or not name.isprintable():
        raise ConfigurationError(
            f"user {name!r}: no spaces, no ':', no '#' in front, at most 128 characters"
        )
    secret = password.encode("utf-8", "surrogateescape")
    if not secret:
        raise ConfigurationError("the password is empty")
    if len(secret) > _LONGEST_LOGIN // 2:
        raise ConfigurationError(f"the password is longer than {_LONGEST_LOGIN // 2} bytes")
    made = PasswordHash(1 << _LOG2_N, _R, _P, os.urandom(_SALT), bytes(_HASH))
    value = _scrypt(secret, made)
    parts = (base64.b64encode(each).decode() for each in (made.salt, value))
    return f"{name}:scrypt${_LOG2_N}${_R}${_P}${'$'.join(parts)}"


def parse_users(text: str, place: str) -> dict[str, PasswordHash]:
    """Parse the users file; lines that start with `#` are comments.

    Raise ConfigurationError for an invalid line, with its number and never its text.
    """
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ConfigurationError(
                f"{place}: line {number}: expected NAME:HASH, as `ccagent export password` prints"
            )
        log2_n, r, p = int(found[2]), int(found[3]), int(found[4])
        try:
            salt = base64.b64decode(found[5], validate=True)
            value = base64.b64decode(found[6], validate=True)
        except binascii.Error as error:
            raise ConfigurationError(f"{place}: line {number}: invalid base64") from error
        if not (10 <= log2_n <= 18 and 1 <= r <= 16 and 1 <= p <= 16 and 16 <= len(value) <= 64):
            raise ConfigurationError(f"{place}: line {number}: parameters of scrypt out of range")
        if 128 * r << log2_n > _MOST_MEMORY:
            raise ConfigurationError(f"{place}: line {number}: scrypt needs more than 64 MiB")
        users[found[1]] = PasswordHash(1 << log2_n, r, p, salt, value)
    if not users:
        raise ConfigurationError(f"{place}: has no user")
    return users


class _Users(NamedTuple):
    """The users of a file.

    nobody: an unknown user takes as long as this one. known: digests of logins that were right.
    """

    users: dict[str, PasswordHash]
    nobody: PasswordHash
    known: set[bytes]


class PasswordFile:
    """A checker of logins against a users file. A changed file is read again.

    Successful logins are cached: their hash is computed once.
    """

    def __init__(self, place: str) -> None:
        """Read the file. Raise ConfigurationError if it is invalid or can't be read."""
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._guesses = GuessBudgets()
        self._file = RenewedFiles(
            "exporter: users-file",
            [secret_path(place)],
            lambda: _read_users(place),
            _LOOK_AT_USERS_EVERY,
        )

    def accepts(self, authorization: str, peer: str = "") -> bool:
        """Return whether the header Authorization has a valid login.

        peer: the address of the client. Raise BusyError if the client must wait.
        """
        login = parse_basic(authorization)
        if login is None:
            return False
        name, password = login
        # A login checked against the old file does not enter the cache of the new one.
        users, nobody, known = self._file.get()
        digest = hmac.digest(self._key, name.encode() + b"\0" + password, "sha256")
        if digest in known:
            return True
        if not self._lock.acquire(timeout=2.0):
            raise BusyError
        try:
            if not self._guesses.spend(peer):
                raise BusyError
            user = users.get(name)
            is_right = (user or nobody).matches(password) and user is not None
            if is_right:
                if len(known) > 1000:
                    known.clear()
                known.add(digest)
                self._guesses.restore(peer)
            else:
                logger.warning("exporter: login refused: wrong user or password")
            return is_right
        finally:
            self._lock.release()


def _read_users(place: str) -> _Users:
    users = parse_users(secret_text(place), place)
    return _Users(users, next(iter(users.values())), set())


def parse_basic(authorization: str) -> tuple[str, bytes] | None:
    """Return user and password of a header `Basic ...` (RFC 7617); None if it is invalid."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = decoded.partition(b":")
    if not colon or len(decoded) > _LONGEST_LOGIN:
        return None
    return name.decode("utf-8", "replace"), password


def _scrypt(password: bytes, form: PasswordHash) -> bytes:
    """Return the hash of a password, with parameters and length of `form`."""
    return hashlib.scrypt(
        password,
        salt=form.salt,
        n=form.n,
        r=form.r,
        p=form.p,
        maxmem=2 * _MOST_MEMORY,
        dklen=len(form.value),
    )
