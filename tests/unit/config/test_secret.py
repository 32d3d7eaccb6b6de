"""Secrets: the first line of a file that others can't read, and never in an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    return path


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"s3cret", "s3cret"),
        (b"s3cret\n", "s3cret"),
        (b"s3cret\r\n", "s3cret"),
        (b"  with a space \n", "with a space"),
        (b"first\nsecond\n", "first"),
        ("Schlüssel\n".encode(), "Schlüssel"),
    ],
)
def test_the_secret_is_the_first_line(file: Path, content: bytes, secret: str) -> None:
    file.write_bytes(content)
    assert read_secret(str(file)) == secret


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o660])
def test_the_owner_and_a_group_may_read_it(file: Path, mode: int) -> None:
    file.write_bytes(b"s3cret")
    file.chmod(mode)
    assert read_secret(str(file)) == "s3cret"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o601])
def test_others_may_not(file: Path, mode: int) -> None:
    file.write_bytes(b"s3cret")
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match="others can read this secret") as caught:
        read_secret(str(file))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"  \n", b"\ns3cret\n", b"s3\x00cret\n", b"s3cret\xff"]
)
def test_a_file_without_a_secret_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^{file}: ") as caught:
        read_secret(str(file))
    assert "cret" not in str(caught.value).replace(str(file), "").replace("no secret", "")


@pytest.mark.parametrize("place", ["/proc/self/mem", "/a\0b"])
def test_a_file_that_cant_be_read_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="Input/output error|not a path"):
        read_secret(place)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_secret(str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="regular file"):
        read_secret("/dev/null")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigurationError, match="regular file"):
        read_secret(str(tmp_path / "fifo"))
    with pytest.raises(ConfigurationError, match=r"directory|regular file"):
        read_secret(str(tmp_path))


def test_systemd_passes_credentials_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nats").write_text("s3cret\n")
    (tmp_path / "nats").chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret("credential:nats") == "s3cret"


@pytest.mark.parametrize("name", ["", ".", "..", "../nats", "/etc/shadow"])
def test_a_credential_is_never_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(ConfigurationError, match="not the name of a credential"):
        read_secret(f"credential:{name}")


def test_credentials_that_systemd_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigurationError, match="LoadCredential="):
        read_secret("credential:nats")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(ConfigurationError, match="^credential:nats: No such file"):
        read_secret("credential:nats")
