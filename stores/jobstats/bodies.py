"""Request bodies with limits of size, duration and total size."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_PIECE = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS

MOST_SKIPPED = 256 << 20
"""Maximum bytes that are received after the limit of a body, before the response."""


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
