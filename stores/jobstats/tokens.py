"""Bearer tokens of senders and readers, in a file with one token a line."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ccagent.config.secret import secret_path, secret_text
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger
from ccagent.stores.jobstats.refusals import ANY_SENDER, SenderRights

if TYPE_CHECKING:
    from collections.abc import Callable

TokenRole = Literal["sender", "jobs", "reader"]

_ROLES = ("sender", "jobs", "reader")
_HASHED = "sha256:"
_SHORTEST = 16
_LOOK_EVERY = 1.0


class TokenOwner(NamedTuple):
    """The owner of a token. rights: of a sender."""

    role: TokenRole
    rights: SenderRights


class LoginRefusedError(CcagentError):
    """A request without a token, or with an unknown token: 401."""


class RoleRefusedError(CcagentError):
    """A request whose token has another role: 403."""


class TokenFile(NamedTuple):
    """The owners by the SHA-256 of their tokens, and the state of the file."""

    owners: dict[bytes, TokenOwner]
    state: tuple[int, int, int]


class TokenTable:
    """Checks tokens. A changed file is read again; an invalid file changes nothing."""

    def __init__(self, path: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Without a path no token is needed. Raise ConfigurationError."""
        self._path = path
        self._monotonic = monotonic
        self._looked = monotonic()
        self._file = read_tokens(path) if path else None

    @property
    def is_open(self) -> bool:
        """True if no token is needed."""
        return self._file is None

    def check(self, authorization: str, role: TokenRole) -> SenderRights:
        """Return the owner's rights. Raise LoginRefusedError, RoleRefusedError."""
        if self._file is None:
            return ANY_SENDER
        self._look()
        scheme, _, token = authorization.partition(" ")
        owner = None
        if scheme.lower() == "bearer":
            owner = self._file.owners.get(_hash(token.strip()))
        if owner is None:
            raise LoginRefusedError("a valid Bearer token is required")
        if owner.role != role:
            raise RoleRefusedError(f"this token has the role {owner.role}, not {role}")
        return owner.rights

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        try:
            if self._file is not None and _state(self._path) != self._file.state:
                self._file = read_tokens(self._path)
                logger.info("token-file: read again, %d tokens", len(self._file.owners))
        except (ConfigurationError, OSError) as error:
            logger.error("token-file: %s; the previous tokens stay in use", error)


def read_tokens(path: str) -> TokenFile:
    """Read lines `ROLE NAME TOKEN [TARGET,...]`.

    Raise ConfigurationError without a token in its message.
    """
    try:
        state = _state(path)
    except OSError as error:
        raise ConfigurationError(f"token-file: {path}: {error.strerror}") from error
    owners: dict[bytes, TokenOwner] = {}
    for number, line in enumerate(secret_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # Only senders have targets.
        most = 4 if words[0] == "sender" else 3
        if not 3 <= len(words) <= most or words[0] not in _ROLES:
            raise ConfigurationError(
                f"token-file: {path}: line {number}: expected ROLE NAME TOKEN; "
                f"roles are {', '.join(_ROLES)}"
            )
        role, name, token = words[:3]
        rights = SenderRights(
            None if name == "*" else name, tuple(words[3].split(",")) if len(words) == 4 else ()
        )
        digest = _digest(token, f"token-file: {path}: line {number}")
        owners[digest] = TokenOwner(cast("TokenRole", role), rights)
    if not owners:
        raise ConfigurationError(f"token-file: {path}: contains no token")
    return TokenFile(owners, state)


def _digest(token: str, place: str) -> bytes:
    if token.startswith(_HASHED):
        try:
            digest = bytes.fromhex(token.removeprefix(_HASHED))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ConfigurationError(f"{place}: expected 64 hexadecimal digits after {_HASHED}")
        return digest
    if len(token) < _SHORTEST:
        raise ConfigurationError(f"{place}: expected a token of at least {_SHORTEST} characters")
    return _hash(token)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _state(path: str) -> tuple[int, int, int]:
    found = os.stat(secret_path(path))
    return found.st_mtime_ns, found.st_size, found.st_ino
