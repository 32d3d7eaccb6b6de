"""Users of the exporter: a file of scrypt hashes, the check of logins, limits for attempts.

A line is `NAME:scrypt$LOG2_N$R$P$SALT$HASH`, with salt and hash in base64 (RFC 7914).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
import time
from typing import NamedTuple

from ccagent.config.secret import RenewedFiles, secret_path, secret_text
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.net.urls import network

_AT_ONCE = 5.0
_NEW_AFTER = 1.0
_MOST_CLIENTS = 1000


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
_LOOK_EVERY = 2.0


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
            "exporter: users-file", [secret_path(place)], lambda: _read_users(place), _LOOK_EVERY
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
