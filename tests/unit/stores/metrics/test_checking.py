"""What would end the store at its start is found by `check`."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.checking import find_problems, read_settings

if TYPE_CHECKING:
    from pathlib import Path

KEY = "dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q="


def problems(directory: Path, text: str) -> list[str]:
    path = directory / "store.toml"
    path.write_text(text if "data = " in text else f'data = "{directory / "data"}"\n{text}')
    return find_problems(read_settings(str(path)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate, its key, another key, and the key with a password."""
    directory = tmp_path_factory.mktemp("tls")
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2050, 1, 1, tzinfo=UTC))
        .sign(key, SHA256())
    )
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    for file, one, encryption in (
        ("key", key, NoEncryption()),
        ("other", other, NoEncryption()),
        ("locked", key, BestAvailableEncryption(b"x")),
    ):
        text = one.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        (directory / f"{file}.pem").write_bytes(text)
    return directory


def test_a_right_configuration_has_no_problem(tmp_path: Path, pair: Path) -> None:
    tls = f'[tls]\ncertificate = "{pair}/certificate.pem"\nkey = "{pair}/key.pem"\n'
    assert problems(tmp_path, f'jwt-public-key = "{KEY}"\n{tls}') == []


@pytest.mark.parametrize("key", ["x", "dGVzdA==", "----", "é"])
def test_a_key_of_tokens_that_is_none(key: str, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, f'jwt-public-key = "{key}"\n')
    assert problem.startswith("jwt-public-key: not base64 of the 32 bytes")


@pytest.mark.parametrize(
    ("certificate", "key", "reason"),
    [
        ("none.pem", "key.pem", "tls.certificate: none.pem: No such file"),
        ("certificate.pem", "none.pem", "tls.key: none.pem: No such file"),
        ("certificate.pem", "other.pem", "key values mismatch"),
        ("certificate.pem", "locked.pem", "its key without a password"),
        ("key.pem", "key.pem", "expected a chain in PEM"),
    ],
)
def test_certificates_that_can_not_be_used(
    certificate: str, key: str, reason: str, tmp_path: Path, pair: Path
) -> None:
    text = f'[tls]\ncertificate = "{pair / certificate}"\nkey = "{pair / key}"\n'
    (problem,) = problems(tmp_path, text)
    assert reason in problem.replace(f"{pair}/", "")


NATS = '[nats]\nurl = "tls://127.0.0.1"\n{}\n[[nats.subscriptions]]\nsubject = "x"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NATS.format('password-file = "/none"'), "/none: No such file"),
        (NATS.format('creds-file = "/none"'), "/none: No such file"),
        (NATS.format('ca-file = "/none"'), "nats: ca-file: /none"),
        ('engine = "victoria-metrics"\nengine-url = "x"\n', "engine-url: expected http"),
        ('data = "/dev/null"\n', "data: /dev/null: not a directory"),
    ],
)
def test_other_problems(text: str, reason: str, tmp_path: Path) -> None:
    found = problems(tmp_path, text)
    assert any(reason in problem for problem in found), found


def test_a_directory_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:  # root may write everywhere
        return False

    monkeypatch.setattr(os, "access", refuse)
    assert "not readable and writable" in problems(tmp_path, f'data = "{tmp_path}"\n')[0]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    text = 'jwt-public-key = "x"\n[tls]\ncertificate = "/none"\nkey = "/none"\n'
    assert len(problems(tmp_path, text)) == 2


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('proxies = ["localhost"]\nproxy-secret-file = "SECRET"', "'localhost' is not an address"),
        ('proxies = ["10.0.0.0/8"]\nproxy-secret-file = "SECRET"', "is not an address"),
        ('proxies = ["10.0.0.1"]', "web.proxy-secret-file: required"),
        ('proxies = ["10.0.0.1"]\nproxy-secret-file = "/nowhere"', "/nowhere: No such file"),
        ('proxies = ["10.0.0.1"]\nproxy-secret-file = "SECRET"', "at least 16 characters"),
        ('staff = [""]', "web.staff: has an empty name"),
        ('proxy-header = "Remote User"', "'Remote User' is not a header name"),
    ],
)
def test_access_to_pages_that_could_not_work(tmp_path: Path, keys: str, problem: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("short\n")
    secret.chmod(0o600)
    text = f"[web]\n{keys}\n".replace("SECRET", str(secret))
    try:
        found = problems(tmp_path, text)
    except ConfigurationError as error:
        found = list(error.problems)
    assert [problem in one for one in found] == [True]
