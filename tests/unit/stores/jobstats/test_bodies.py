"""Bodies within their limits."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from ccagent.stores.jobstats.bodies import BodyError, BodyLimits


async def chunks(body: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]


def read(
    body: bytes, *, encoding: str = "", length: str | None = None, limits: BodyLimits | None = None
) -> bytes:
    chosen = limits or BodyLimits(1000, 5000, 5.0)
    return asyncio.run(chosen.read(chunks(body), length=length, encoding=encoding))


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_a_body_is_read_whole(size: int) -> None:
    body = bytes(size)
    assert read(body) == body
    assert read(gzip.compress(body), encoding="gzip") == body


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (bytes(1001), "", 413), (gzip.compress(bytes(10**6), mtime=0), "gzip", 413),
        (b"x", "gzip", 400), (b"", "gzip", 400), (gzip.compress(b"x", mtime=0)[:-1], "gzip", 400),
        (gzip.compress(b"x", mtime=0) + b"y", "gzip", 400), (b"x", "br", 415),
    ],
)  # fmt: skip
def test_what_is_not_taken_has_a_status(body: bytes, encoding: str, status: int) -> None:
    limits = BodyLimits(1000, 5000, 5.0)
    with pytest.raises(BodyError) as caught:
        read(body, encoding=encoding, limits=limits)
    assert (caught.value.status, limits.held) == (status, 0)


def test_a_length_is_believed_when_it_is_too_large() -> None:
    with pytest.raises(BodyError, match="2000 bytes, more than 1000"):
        read(b"", length="2000")
    assert read(b"x", length="-5") == b"x"


def test_bodies_are_bounded_together() -> None:
    limits = BodyLimits(1000, 1500, 5.0)
    first = read(bytes(900), limits=limits)
    with pytest.raises(BodyError) as caught:
        read(bytes(900), limits=limits)
    assert caught.value.status == 503
    limits.release(first)
    assert read(bytes(900), limits=limits)


def test_a_slow_body_is_given_up() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    limits = BodyLimits(1000, 5000, 0.01)
    with pytest.raises(BodyError) as caught:
        asyncio.run(limits.read(slow(), length=None, encoding=""))
    assert (caught.value.status, limits.held) == (408, 0)
