"""Users and passwords: lines of their file, right and wrong logins."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.exporter import access
from ccagent.exporter.access import (
    BusyError,
    PasswordFile,
    PasswordHash,
    make_line,
    parse_basic,
    parse_users,
)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(access, "_LOG2_N", 10)
    monkeypatch.setattr(access, "_P", 1)
    path = tmp_path / "users"
    path.write_text(f"# who may ask\n{make_line('ada', 'right: ä')}\n\n")
    path.chmod(0o600)
    return path


def test_a_right_login_is_accepted_again_and_again(users: Path) -> None:
    file = PasswordFile(str(users))
    assert all(file.accepts(basic("ada", "right: ä")) for _ in range(20))


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!!", "Bearer x", basic("ada", ""), basic("eve", "right: ä")]
)
def test_a_wrong_login_is_not(users: Path, header: str) -> None:
    assert not PasswordFile(str(users)).accepts(header)


def test_guesses_are_bounded_and_right_logins_go_on(users: Path) -> None:
    file = PasswordFile(str(users))
    assert file.accepts(basic("ada", "right: ä"))
    guesses = [basic("ada", f"wrong {number}") for number in range(10)]
    with pytest.raises(BusyError):
        any(map(file.accepts, guesses))
    assert file.accepts(basic("ada", "right: ä"))


def test_who_guesses_holds_up_no_other_client(users: Path) -> None:
    file = PasswordFile(str(users))
    for address in ("192.0.2.1", "::ffff:192.0.2.1"):
        with pytest.raises(BusyError):
            any(file.accepts(basic("ada", f"wrong {number}"), address) for number in range(10))
    assert file.accepts(basic("ada", "right: ä"), "::ffff:192.0.2.2")


def test_a_changed_file_counts(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_LOOK_AT_USERS_EVERY", 0.0)
    file = PasswordFile(str(users))
    assert file.accepts(basic("ada", "right: ä"))
    users.write_text(make_line("bob", "other") + "\n")
    os.utime(users, ns=(1, 1))
    assert not file.accepts(basic("ada", "right: ä"))
    assert file.accepts(basic("bob", "other"))
    users.write_text("damaged")
    assert file.accepts(basic("bob", "other"))


def test_a_login_that_is_checked_while_the_file_changes_is_not_remembered(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_LOOK_AT_USERS_EVERY", 0.0)
    file = PasswordFile(str(users))
    real = access._scrypt

    def change(password: bytes, form: PasswordHash) -> bytes:
        monkeypatch.setattr(access, "_scrypt", real)
        users.write_text(f"{make_line('bob', 'other')}\n")
        assert not file.accepts("Basic Ym9iOg==")
        return real(password, form)

    monkeypatch.setattr(access, "_scrypt", change)
    monkeypatch.setattr(file, "_lock", threading.RLock())
    file.accepts(basic("ada", "right: ä"))
    assert not file.accepts(basic("ada", "right: ä"))


def test_a_file_that_others_read_is_refused(users: Path) -> None:
    users.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read"):
        PasswordFile(str(users))


@pytest.mark.parametrize(
    "line",
    [
        "ada:secret", "ada:$2y$10$abcdefghijklmnopqrstuv", "",
        "ada:scrypt$40$8$1$AAAAAAAA$" + "A" * 44,
        "ada:scrypt$13$8$1$!!!!!!!!$" + "A" * 44, "ada:scrypt$18$16$1$AAAAAAAA$" + "A" * 44,
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_users(line, "users")
    assert "secret" not in str(raised.value)
    assert "AAAA" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "password"),
    [("a b", "x"), ("a:b", "x"), ("", "x"), ("a", ""), ("#a", "x"), ("a", "x" * 1025)],
)
def test_what_can_be_no_user(name: str, password: str) -> None:
    with pytest.raises(ConfigurationError):
        make_line(name, password)


def test_a_password_may_be_any_bytes_and_as_long_as_it_is_accepted(users: Path) -> None:
    for secret in (b"\xff\xfe", b"x" * 1024):
        users.write_text(make_line("ada", secret.decode("utf-8", "surrogateescape")))
        header = "Basic " + base64.b64encode(b"ada:" + secret).decode()
        assert PasswordFile(str(users)).accepts(header)


def test_a_login_of_another_scheme_is_none() -> None:
    assert parse_basic("Digest abc") is None
    assert parse_basic("basic YTpi") == ("a", b"b")
    assert parse_basic("Basic " + base64.b64encode(b"a" * 5000).decode()) is None
