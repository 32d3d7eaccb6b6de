"""Bearer tokens of senders and readers, in a file with one token a line."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple, cast

from ccagent.config.secret import RenewedFiles, secret_path, secret_text
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.stores.jobstats.refusals import ANY_SENDER, SenderRights

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


class TokenTable:
    """Checks tokens. A changed file is read again; an invalid file changes nothing."""

    def __init__(self, path: str) -> None:
        """Read the file. Without a path no token is needed. Raise ConfigurationError."""
        self._owners: RenewedFiles[dict[bytes, TokenOwner]] | None = None
        if path:
            paths = [secret_path(path)]
            self._owners = RenewedFiles("tokens", paths, lambda: read_tokens(path), _LOOK_EVERY)

    @property
    def is_open(self) -> bool:
        """True if no token is needed."""
        return self._owners is None

    def check(self, authorization: str, role: TokenRole) -> SenderRights:
        """Return the owner's rights. Raise LoginRefusedError, RoleRefusedError."""
        if self._owners is None:
            return ANY_SENDER
        scheme, _, token = authorization.partition(" ")
        owner = None
        if scheme.lower() == "bearer":
            owner = self._owners.get().get(_hash(token.strip()))
        if owner is None:
            raise LoginRefusedError("a valid Bearer token is required")
        if owner.role != role:
            raise RoleRefusedError(f"this token has the role {owner.role}, not {role}")
        return owner.rights


def read_tokens(path: str) -> dict[bytes, TokenOwner]:
    """Read lines `ROLE NAME TOKEN [TARGET,...]`. Return owners by the SHA-256 of their tokens.

    Raise ConfigurationError without a token in its message.
    """
    try:
        lines = secret_text(path).splitlines()
    except ConfigurationError as error:
        raise ConfigurationError(f"token-file: {error}") from error
    owners: dict[bytes, TokenOwner] = {}
    for number, line in enumerate(lines, 1):
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
    return owners


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
