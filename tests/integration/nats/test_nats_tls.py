"""`tls://`: who is trusted, and who trusts us."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import RetryableError
from tests.support.certificates import Authority
from tests.support.nats_server import Bench, ScriptedServer, greet, message, numbered

if TYPE_CHECKING:
    pass


def tls(authority: Authority, more: str = "", *, expired: bool = False) -> str:
    """What a server that speaks TLS has in its configuration."""
    certificate, key = authority.certify("node", expired=expired)
    files = f'cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.certificate}"'
    return f"tls {{ {files} {more} }}\n"


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_tls_with_a_private_ca(bench: Bench, authority: Authority, scheme: str) -> None:
    server = bench.serve(tls(authority), scheme=scheme)
    bench.connect(server.url, ca_file=authority.certificate).send(numbered(100, 20_000))


def test_tls_with_a_ca_that_nobody_trusts(bench: Bench, authority: Authority) -> None:
    server = bench.serve(tls(authority), scheme="tls")
    with pytest.raises(
        RetryableError, match=f"^{server.url}: its certificate can't be trusted: .*issuer"
    ):
        bench.connect(server.url).send([message()])


def test_tls_with_a_ca_that_nobody_trusts_when_the_server_insists(
    bench: Bench, authority: Authority
) -> None:
    server = bench.serve(tls(authority), scheme="nats")
    with pytest.raises(RetryableError, match="its certificate can't be trusted: .*issuer"):
        bench.connect(server.url).send([message()])


def test_tls_with_a_certificate_for_another_host(bench: Bench, authority: Authority) -> None:
    server = bench.serve(tls(authority), scheme="tls")
    with pytest.raises(RetryableError, match="(?i)hostname mismatch.*'localhost'"):
        bench.connect(f"tls://localhost:{server.port}", ca_file=authority.certificate).send(
            [message()]
        )


def test_tls_with_an_expired_certificate(bench: Bench, authority: Authority) -> None:
    server = bench.serve(tls(authority, expired=True), scheme="tls")
    with pytest.raises(
        RetryableError,
        match=f"^{server.url}: its certificate can't be trusted: certificate has expired$",
    ):
        bench.connect(server.url, ca_file=authority.certificate).send([message()])


def test_tls_without_any_trust_is_said(
    bench: Bench, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = bench.serve(tls(authority, expired=True), scheme="tls")
    with caplog.at_level(logging.WARNING):
        transport = bench.connect(server.url, insecure=True)
    assert [r.getMessage() for r in caplog.records if r.name == "ccagent"] == [
        f"{server.url}: insecure = true: the server is not verified"
    ]
    transport.send([message()])


def test_tls_with_our_certificate(bench: Bench, authority: Authority, tmp_path: Path) -> None:
    server = bench.serve(tls(authority, ", verify: true"), scheme="tls")
    ca = authority.certificate
    certificate, key = authority.certify("client")
    bench.connect(server.url, ca_file=ca, certificate_file=certificate, key_file=key).send(
        [message()]
    )
    # The server's alert comes after its handshake, and is lost if its RST overtakes it.
    with pytest.raises(
        RetryableError,
        match=f"^{server.url}: the server "
        "(requires|closed the connection during the login: it may require) a client certificate",
    ):
        bench.connect(server.url, ca_file=ca).send([message()])
    (tmp_path / "other").mkdir()
    certificate, key = Authority(tmp_path / "other").certify("client")
    with pytest.raises(RetryableError, match=f"^{server.url}: .*not trust the client certificate$"):
        bench.connect(server.url, ca_file=ca, certificate_file=certificate, key_file=key).send(
            [message()]
        )


def test_a_connection_that_is_lost_says_nothing_on_stderr(
    bench: Bench, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = bench.serve(tls(authority), scheme="tls")
    transport = bench.connect(server.url, ca_file=authority.certificate)
    transport.send([message()])
    server.kill()
    with pytest.raises(RetryableError, match=f"^{server.url}: "):
        transport.send([message()])
    assert {r.name for r in caplog.records} <= {"ccagent.nats"}
    assert not [r for r in caplog.records if r.levelno > logging.DEBUG]


def test_a_clear_server_where_tls_was_expected_gets_nothing(bench: Bench) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected, auth_required=True)
        for _ in server.lines(connected):
            pass

    server = bench.pretend(script)
    url = server.url.replace("nats", "tls", 1)
    with pytest.raises(RetryableError, match=f"^{url}: the server offers no TLS$"):
        bench.connect(url, token_file=bench.secret("s3cr3t")).send([message()])
    assert server.got == []
