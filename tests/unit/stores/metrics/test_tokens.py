"""Tokens: signature, times, roles."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.tokens import ALL_RIGHTS, READ, WRITE, TokenVerifier, UnauthorizedError
from tests.unit.stores.metrics.support import NOW

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(claims: Any, alg: str = "EdDSA", key: Ed25519PrivateKey = KEY) -> bytes:
    parts = {"alg": alg, "typ": "JWT"}, claims
    text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    return f"Bearer {text}.{encoded(key.sign(text.encode()))}".encode()


class Time:
    now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def verifier() -> TokenVerifier:
    return TokenVerifier(PUBLIC, lambda: NOW)


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["read"], READ), (["write"], WRITE), (["read", "write"], READ | WRITE),
        ("admin", ALL_RIGHTS), (["ROLE_ADMIN"], ALL_RIGHTS), (["api"], READ | WRITE),
        (["user"], READ), ([], 0), (["x"], 0),
    ],
)  # fmt: skip
def test_roles_are_rights(roles: object, rights: int, verifier: TokenVerifier) -> None:
    for _ in range(2):
        assert verifier.rights(token({"roles": roles})) == rights


def test_a_token_without_roles_reads_and_writes(verifier: TokenVerifier) -> None:
    assert verifier.rights(token({"sub": "x"})) == READ | WRITE


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (b"", "Use JWT Authentication"),
        (b"Basic eDp5", "Use JWT Authentication"),
        (b"Bearer x", "three parts"),
        (b"Bearer x.y.z", "base64url"),
        (b"Bearer " + b"x" * 9000, "too long"),
        (token({}, "HS256"), "only Ed25519"),
        (token({}, "none"), "only Ed25519"),
        (token({}, key=Ed25519PrivateKey.from_private_bytes(b"l" * 32)), "signature is invalid"),
        (token({"exp": NOW}), "expired"),
        (token({"nbf": NOW + 1}), "not valid yet"),
        (token({"iat": NOW + 1}), "before issued"),
        (token([]), "can't be read"),
        (token({"exp": "x"}), "can't be read"),
    ],
)
def test_other_tokens_are_refused(
    authorization: bytes, reason: str, verifier: TokenVerifier
) -> None:
    with pytest.raises(UnauthorizedError, match=reason):
        verifier.rights(authorization)


def test_a_remembered_token_expires() -> None:
    clock = Time()
    verifier = TokenVerifier(PUBLIC, clock)
    assert verifier.rights(token({"exp": NOW + 10}))
    clock.now = NOW + 10
    with pytest.raises(UnauthorizedError, match="expired"):
        verifier.rights(token({"exp": NOW + 10}))


@pytest.mark.parametrize("key", ["", "x", PUBLIC[:20], base64.b64encode(b"short").decode()])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="jwt-public-key"):
        TokenVerifier(key, lambda: NOW)


@given(st.binary(max_size=300))
def test_no_bytes_are_a_token(text: bytes) -> None:
    verifier = TokenVerifier(PUBLIC, lambda: NOW)
    for authorization in (text, b"Bearer " + text):
        with pytest.raises(UnauthorizedError):
            verifier.rights(authorization)
