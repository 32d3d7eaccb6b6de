"""Admission of requests: tokens, limits of bodies, and reasons that data are never stored.

The tokens of senders and readers are in a file with one token a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ccagent.config.secret import RenewedFiles, secret_path, secret_text
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

TokenRole = Literal["sender", "jobs", "reader"]

MOST_SKIPPED = 256 << 20
"""Maximum bytes that are received after the limit of a body, before the response."""

_MOST_REASONS = 1000
_ROLES = ("sender", "jobs", "reader")
_HASHED = "sha256:"
_SHORTEST = 16
_LOOK_EVERY = 1.0
_PIECE = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS


class RefusedRecord(NamedTuple):
    """A record that can never be stored. number: from 1."""

    number: int
    reason: str


class RefusedArrayError(CcagentError):
    """An array that can never be stored. None of its records is stored.

    records: the first invalid records; empty if the body is not an array. is_forbidden: true if
    another sender may be permitted to send the array.
    """

    def __init__(
        self, reason: str, records: Iterable[RefusedRecord] = (), *, is_forbidden: bool = False
    ) -> None:
        self.records = list(records)[:_MOST_REASONS]
        first = f": record {self.records[0].number}: {self.records[0].reason}" if records else ""
        super().__init__(reason + first)
        self.reason = reason
        self.is_forbidden = is_forbidden


class RecordError(CcagentError):
    """A record that can never be stored. The message is the reason."""


class SenderError(RecordError):
    """A record of a server or target that the sender's token does not permit."""


class SenderRights(NamedTuple):
    """What a sender may store.

    server: the only accepted one; None: any. targets: patterns of the only accepted targets;
    empty: any.
    """

    server: str | None = None
    targets: tuple[str, ...] = ()

    def require_server(self, server: str, key: str) -> None:
        """Raise SenderError if the token is for another server. key: of the server."""
        if self.server not in {None, server}:
            raise SenderError(
                f"{key}: {printable(server)!r} is not {self.server!r}, the owner of the token"
            )

    def require_target(self, target: str) -> None:
        """Raise SenderError if the token is for other targets."""
        if self.targets and not any(fnmatchcase(target, one) for one in self.targets):
            raise SenderError(f"target: {printable(target)!r} is none of the token's targets")


ANY_SENDER = SenderRights()


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


class BodyError(CcagentError):
    """A refused body. status: of the HTTP response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class BodyLimits:
    """Limits of bodies.

    most, together: bytes of one, of all inflated bodies. seconds: duration of receiving one.
    """

    def __init__(self, most: int, together: int, seconds: float) -> None:
        self.most = most
        self.together = together
        self.seconds = seconds
        self.held = 0
        """Bytes of all bodies in memory."""

    async def read(
        self, chunks: AsyncIterator[bytes], *, length: str | None, encoding: str
    ) -> bytes:
        """Return a complete body. Its bytes count until `release`. Raise BodyError."""
        if length is not None and length.isdigit() and int(length) > self.most:
            await self._skip(chunks)
            raise BodyError(413, f"{length} bytes, more than {self.most} (limits.body)")
        if encoding not in {"", "identity", "gzip"}:
            raise BodyError(415, "Content-Encoding: only gzip is supported")
        parts: list[bytes] = []
        size = 0
        inflate = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        try:
            async with asyncio.timeout(self.seconds):
                async for chunk in chunks:
                    for part in (chunk,) if inflate is None else _inflate(inflate, chunk):
                        size += len(part)
                        self.held += len(part)
                        parts.append(part)
                        self._check(size)
            if inflate is not None and not inflate.eof:
                raise BodyError(400, "gzip: the body is incomplete")  # noqa: TRY301
        except BodyError as error:
            self.held -= size
            if error.status == 413:
                parts.clear()
                await self._skip(chunks)
            raise
        except TimeoutError:
            self.held -= size
            raise BodyError(408, f"no complete body within {self.seconds:g} s") from None
        except BaseException:
            self.held -= size
            raise
        # In a thread: joining large parts releases the interpreter's lock.
        return await asyncio.to_thread(b"".join, parts) if size > _PIECE else b"".join(parts)

    def release(self, body: bytes) -> None:
        """Subtract a body that is no longer in memory."""
        self.held -= len(body)

    async def _skip(self, chunks: AsyncIterator[bytes]) -> None:
        """Receive the rest of a body that is too large, as far as the limits permit.

        A client that still sends when the connection is closed gets a reset, not the response.
        """
        skipped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                async for chunk in chunks:
                    skipped += len(chunk)
                    if skipped > MOST_SKIPPED:
                        break

    def _check(self, size: int) -> None:
        if size > self.most:
            raise BodyError(413, f"more than {self.most} bytes (limits.body)")
        if self.held > self.together:
            raise BodyError(503, "too many bodies at once (limits.bodies)")


def _inflate(inflate: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """Yield the inflated parts of a chunk, one at a time. Raise BodyError."""
    if inflate.eof and chunk:
        raise BodyError(400, "gzip: bytes after the end")
    while True:
        try:
            part = inflate.decompress(chunk, _PIECE)
        except zlib.error:
            raise BodyError(400, "gzip: the body is damaged") from None
        chunk = inflate.unconsumed_tail
        if part:
            yield part
        elif not chunk:
            break
    if inflate.unused_data:
        raise BodyError(400, "gzip: bytes after the end")
