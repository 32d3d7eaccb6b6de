"""Logins and TLS of the control service's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ccagent.controls.nats_requests import connect_client
from ccagent.controls.settings import ControlsSettings
from ccagent.errors import ConfigurationError, RetryableError
from tests.support.certificates import Authority
from tests.support.control_machines import check_table
from tests.support.nats_server import NatsServer, ScriptedServer, greet, new_seed, public_key

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    servers: list[NatsServer] = []

    def served(configuration: str, scheme: str = "nats") -> NatsServer:
        server = NatsServer(tmp_path / "nats", configuration, scheme, with_jetstream=False)
        servers.append(server)
        return server

    yield served
    for server in servers:
        server.kill()


def secret(tmp_path: Path, text: str, name: str = "secret") -> str:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def try_login(url: str, **keys: Any) -> str:
    """Return the error, empty for none."""
    try:
        connect_client(ControlsSettings(url=url, **keys), "test", 10.0).close()
    except RetryableError as error:
        return str(error)
    return ""


def test_passwords_tokens_and_nkeys(tmp_path: Path, serve: Callable[..., NatsServer]) -> None:
    seed = new_seed()
    users = f"{{user: ada, password: hunter2}}, {{nkey: {public_key(seed)}}}"
    url = serve(f"authorization {{ users: [{users}] }}").url
    good = secret(tmp_path, "hunter2")
    assert not try_login(url, user="ada", password_file=good)
    assert not try_login(url, nkey_file=secret(tmp_path, seed, "nkey"))
    for keys in (
        {},
        {"user": "ada", "password_file": secret(tmp_path, "wrong", "wrong")},
        {"nkey_file": secret(tmp_path, new_seed(), "other")},
    ):
        error = try_login(url, **keys)
        assert error.endswith("the login is refused"), error
        assert "hunter2" not in error
        assert "wrong" not in error


def test_tls_is_verified(tmp_path: Path, serve: Callable[..., NatsServer]) -> None:
    (tmp_path / "ca").mkdir()
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.certify("server")
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    url = serve(tls, "tls").url
    assert not try_login(url, ca_file=authority.certificate)
    assert "its certificate can't be trusted" in try_login(url)
    assert not try_login(url, insecure=True)


def test_a_server_without_tls_gets_no_password(
    tmp_path: Path, serve: Callable[..., NatsServer]
) -> None:
    url = serve("").url.replace("nats://", "tls://")
    assert try_login(url).endswith("the server offers no TLS")
    remote = {"url": "nats://192.0.2.1", "user": "a", "password-file": secret(tmp_path, "x")}
    with pytest.raises(ConfigurationError, match="unencrypted"):
        check_table(remote)


def test_what_is_no_nats_is_said(tmp_path: Path) -> None:
    def flood(server: ScriptedServer, connected: socket.socket) -> None:
        connected.sendall(b"x" * 3_000_000)

    def hang_up(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected)

    for script, reason in ((flood, "does not speak NATS"), (hang_up, "closed the connection")):
        server = ScriptedServer(script)
        try:
            error = try_login(server.url)
            assert reason in error or "lost" in error
        finally:
            server.stop()
    assert "refused" in try_login("nats://127.0.0.1:1").lower()
