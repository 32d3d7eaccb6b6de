"""Tokens of senders and readers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats import tokens
from ccagent.stores.jobstats.tokens import LoginRefusedError, RoleRefusedError, TokenTable

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
    monkeypatch.setattr(tokens, "_LOOK_EVERY", 0.0)
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
