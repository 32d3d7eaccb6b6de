"""Tokens of senders and readers, and bodies within their limits."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats import admission
from ccagent.stores.jobstats.admission import (
    BodyError,
    BodyLimits,
    LoginRefusedError,
    RoleRefusedError,
    TokenTable,
)

ONE, OTHER = "a-token-of-one-server", "the-token-of-another"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "tokens"
    made.touch(mode=0o600)
    hashed = hashlib.sha256(OTHER.encode()).hexdigest()
    made.write_text(f"# who\nsender oss1 {ONE}\nreader people sha256:{hashed}\n")
    return made


def test_a_token_has_an_owner_and_a_role(path: Path) -> None:
    table = TokenTable(str(path))
    assert table.check(f"Bearer {ONE}", "sender").server == "oss1"
    assert table.check(f"bearer {OTHER}", "reader").server == "people"
    with pytest.raises(RoleRefusedError):
        table.check(f"Bearer {ONE}", "reader")
    for wrong in ("", "Bearer", f"Basic {ONE}", f"Bearer {ONE}x", "Bearer ü"):
        with pytest.raises(LoginRefusedError):
            table.check(wrong, "sender")


def test_a_star_sends_for_any_server(path: Path) -> None:
    path.write_text(f"sender * {ONE}\n")
    assert TokenTable(str(path)).check(f"Bearer {ONE}", "sender").server is None


def test_without_a_file_everybody_may() -> None:
    assert TokenTable("").is_open
    assert TokenTable("").check("", "reader").server is None


def test_the_file_is_read_again_when_it_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_LOOK_EVERY", 0.0)
    table = TokenTable(str(path))
    path.write_text(f"sender oss2 {ONE} \n\n")
    assert table.check(f"Bearer {ONE}", "sender").server == "oss2"
    path.unlink()
    assert table.check(f"Bearer {ONE}", "sender").server == "oss2"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "contains no token"),
        (f"sender {ONE}", "line 1: expected ROLE NAME TOKEN"),
        (f"admin x {ONE}", "line 1: expected ROLE NAME TOKEN; roles are sender, jobs, reader"),
        ("sender x short", "line 1: expected a token of at least 16 characters"),
        ("sender x sha256:ab", "line 1: expected 64 hexadecimal digits"),
    ],
)
def test_a_bad_file_is_explained_without_its_tokens(path: Path, text: str, reason: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        TokenTable(str(path))
    assert reason in str(caught.value)
    assert ONE not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(path: Path) -> None:
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read this secret"):
        TokenTable(str(path))


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
