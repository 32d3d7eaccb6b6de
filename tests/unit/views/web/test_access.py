"""Who looks: by a token, by a proxy that is trusted, or anybody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from starlette.requests import Request

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.tokens import TokenVerifier, UnauthorizedError
from ccagent.views.web.access import COOKIE, PageAccess, Viewer
from tests.support.page_site import public_key, token


def request(client: str = "127.0.0.1", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    found = [(name.encode(), value.encode()) for name, value in named.items()]
    return Request({
        "type": "http", "headers": found, "client": (client, 1), "query_string": b"",
        "scheme": "http", "server": ("store", 80), "path": "/",
    })  # fmt: skip


def with_tokens(**settings: object) -> PageAccess:
    chosen = WebSettings(**settings)  # type: ignore[arg-type]
    return PageAccess(chosen, TokenVerifier(public_key(), time.time))


def proxied(tmp_path: Path, **settings: object) -> PageAccess:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    os.chmod(secret, 0o600)
    return with_tokens(proxies=["10.0.0.1"], proxy_secret_file=str(secret), **settings)


def test_without_a_key_everybody_sees_everything() -> None:
    access = PageAccess(WebSettings(), None)
    assert access.find_viewer(request()) == Viewer("", is_staff=True)
    assert access.is_open


@pytest.mark.parametrize(
    ("claims", "viewer"),
    [
        ({"sub": "eve", "roles": ["user"]}, Viewer("eve", is_staff=False)),
        ({"sub": "eve", "roles": ["ROLE_USER"]}, Viewer("eve", is_staff=False)),
        ({"sub": "root", "roles": ["user"]}, Viewer("root", is_staff=True)),
        ({"sub": "ada", "roles": ["support"]}, Viewer("ada", is_staff=True)),
        ({"sub": "ada", "roles": "admin"}, Viewer("ada", is_staff=True)),
        ({"sub": "eve"}, Viewer("eve", is_staff=False)),
        ({}, Viewer("", is_staff=True)),
        ({"roles": ["user"]}, Viewer("", is_staff=False)),
    ],
)
def test_a_token_names_a_person(claims: dict[str, object], viewer: Viewer) -> None:
    access = with_tokens(staff=["root"])
    given = token(**claims)
    assert access.find_viewer(request(cookie=f"{COOKIE}={given}")) == viewer
    assert access.find_viewer(request(authorization=f"Bearer {given}")) == viewer


@pytest.mark.parametrize(
    "given",
    ["", "x", "a.b.c", token(sub="eve", exp=1), token(sub="eve", roles=["write"]), token(sub=7),
     token(sub="eve") + "x", "é" * 10, "x" * 10_000],
)  # fmt: skip
def test_a_bad_token_names_nobody(given: str) -> None:
    access = with_tokens()
    with pytest.raises(UnauthorizedError):
        access.check_token(given)
    if given.isascii():
        assert access.find_viewer(request(cookie=f"{COOKIE}={given}")) is None


def test_a_person_without_a_name_sees_no_job() -> None:
    assert not Viewer("", is_staff=False).may_see("")
    assert Viewer("eve", is_staff=False).may_see("eve")
    assert not Viewer("eve", is_staff=False).may_see("bob")


def test_a_proxy_names_a_person(tmp_path: Path) -> None:
    access = proxied(tmp_path, staff=["ada"])
    headers = {"x_remote_user": "eve", "x_ccagent_secret": "0123456789abcdef"}
    assert access.find_viewer(request("10.0.0.1", **headers)) == Viewer("eve", is_staff=False)
    headers["x_remote_user"] = "ada"
    assert access.find_viewer(request("10.0.0.1", **headers)) == Viewer("ada", is_staff=True)


@pytest.mark.parametrize(
    ("client", "secret"),
    [("10.0.0.2", "0123456789abcdef"), ("10.0.0.1", "wrong"), ("10.0.0.1", "")],
)
def test_others_can_t_pretend_to_be_the_proxy(tmp_path: Path, client: str, secret: str) -> None:
    access = proxied(tmp_path)
    given = request(client, x_remote_user="root", x_ccagent_secret=secret)
    assert access.find_viewer(given) is None


def test_a_proxy_needs_a_secret_that_nobody_guesses(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="proxy-secret-file"):
        with_tokens(proxies=["10.0.0.1"])
    short = tmp_path / "short"
    short.write_text("abc\n")
    os.chmod(short, 0o600)
    with pytest.raises(ConfigurationError, match="16 characters"):
        with_tokens(proxies=["10.0.0.1"], proxy_secret_file=str(short))


def test_a_trusted_proxy_says_whether_the_browser_uses_tls(tmp_path: Path) -> None:
    access = proxied(tmp_path)
    secret = "0123456789abcdef"
    told = {"x_forwarded_proto": "https", "x_ccagent_secret": secret}
    assert access.is_encrypted(request("10.0.0.1", **told))
    assert not access.is_encrypted(request("10.0.0.1", x_ccagent_secret=secret))
    assert not access.is_encrypted(request("10.0.0.2", **told))
    assert not access.is_encrypted(request("10.0.0.1", x_forwarded_proto="https"))


def test_the_configuration_says_that_a_proxy_ends_tls() -> None:
    assert with_tokens(behind_tls=True).is_encrypted(request())
    assert not with_tokens().is_encrypted(request(x_forwarded_proto="https"))
