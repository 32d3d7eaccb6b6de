"""JSON web tokens signed with Ed25519, and their rights.

Source: RFC 7519, RFC 8037.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ccagent.errors import CcagentError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE, ADMIN = 1, 2, 4
"""Rights of a request. Several rights are combined by addition."""

ALL_RIGHTS = READ | WRITE | ADMIN

_RIGHTS = {
    "read": READ, "write": WRITE, "admin": ALL_RIGHTS,
    # The roles of cc-backend.
    "api": READ | WRITE, "user": READ, "manager": READ, "support": READ,
}  # fmt: skip
STAFF_ROLES = frozenset({"admin", "api", "read", "manager", "support"})
"""Roles that permit reading the jobs of all users."""

_MOST_REMEMBERED = 1024
_LONGEST = 8192
T = TypeVar("T")


class UnauthorizedError(CcagentError):
    """A request without a valid token. The message is sent to the client."""


class _Claims(msgspec.Struct, frozen=True):
    sub: object = None
    exp: float | None = None
    nbf: float | None = None
    iat: float | None = None
    roles: list[str] | str | None = None


class _Accepted(NamedTuple):
    rights: int
    begins: float
    ends: float
    owner: str | None
    subject: str


class TokenVerifier:
    """Checks tokens, and caches valid tokens."""

    def __init__(
        self, key: str, now: Callable[[], float], staff: frozenset[str] = frozenset()
    ) -> None:
        """Set the public key: base64 of its 32 bytes. Raise ConfigurationError.

        staff: users who may read the jobs of all users, regardless of their roles.
        """
        try:
            self._key = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        except (ValueError, binascii.Error) as error:
            raise ConfigurationError(
                "jwt-public-key: not base64 of the 32 bytes of an Ed25519 key"
            ) from error
        self._now = now
        self._staff = staff
        self._accepted: dict[bytes, _Accepted] = {}

    def rights(self, authorization: bytes) -> int:
        """Return the rights of an Authorization header. Raise UnauthorizedError."""
        return self._find(authorization).rights

    def owner(self, authorization: bytes) -> str | None:
        """Return the only user whose jobs may be read; None: jobs of all users.

        Raise UnauthorizedError.
        """
        owner = self._find(authorization).owner
        return None if owner in self._staff else owner

    def subject(self, authorization: bytes) -> str:
        """Return the subject of a valid token; empty without one. Raise UnauthorizedError."""
        return self._find(authorization).subject

    def _find(self, authorization: bytes) -> _Accepted:
        found = self._accepted.get(authorization)
        now = self._now()
        if found is not None and found.begins <= now < found.ends:
            return found
        accepted = self._verify(authorization, now)
        if len(self._accepted) >= _MOST_REMEMBERED:
            self._accepted.pop(next(iter(self._accepted)))
        self._accepted[authorization] = accepted
        return accepted

    def _verify(self, authorization: bytes, now: float) -> _Accepted:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise UnauthorizedError("Use JWT Authentication")
        if len(token) > _LONGEST:
            raise UnauthorizedError("token is too long")
        parts = token.strip().split(b".")
        if len(parts) != 3:
            raise UnauthorizedError("token is malformed: it does not have three parts")
        header, claims, signature = (_decoded(part) for part in parts)
        if _parsed(header, dict[str, Any]).get("alg") != "EdDSA":
            raise UnauthorizedError("only Ed25519/EdDSA supported")
        try:
            self._key.verify(signature, parts[0] + b"." + parts[1])
        except InvalidSignature as error:
            raise UnauthorizedError("token signature is invalid") from error
        return _accept(_parsed(claims, _Claims), now)


def _decoded(part: bytes) -> bytes:
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise UnauthorizedError("token is malformed: not base64url") from error


def _parsed(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnauthorizedError("token is malformed: its JSON can't be read") from error


def _accept(claims: _Claims, now: float) -> _Accepted:
    if claims.exp is not None and now >= claims.exp:
        raise UnauthorizedError("token is expired")
    if claims.nbf is not None and now < claims.nbf:
        raise UnauthorizedError("token is not valid yet")
    if claims.iat is not None and now < claims.iat:
        raise UnauthorizedError("token used before issued")
    begins = max(claims.nbf or 0.0, claims.iat or 0.0)
    ends = float("inf") if claims.exp is None else claims.exp
    subject = claims.sub if isinstance(claims.sub, str) else ""
    return _Accepted(_rights(claims.roles), begins, ends, _owner(claims), subject)


def _owner(claims: _Claims) -> str | None:
    """Return the user of a token that is restricted to the user's own jobs, else None.

    A token without roles belongs to a program and reads all jobs, as in the reference.
    """
    if claims.roles is None or _names(claims.roles) & STAFF_ROLES:
        return None
    return claims.sub if isinstance(claims.sub, str) else ""


def _names(roles: list[str] | str) -> set[str]:
    given = [roles] if isinstance(roles, str) else roles
    return {role.lower().removeprefix("role_") for role in given}


def _rights(roles: list[str] | str | None) -> int:
    """Return the rights of roles. None: read and write, as in the reference."""
    if roles is None:
        return READ | WRITE
    rights = 0
    for role in _names(roles):
        rights |= _RIGHTS.get(role, 0)
    return rights
