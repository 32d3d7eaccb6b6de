"""`https://`: who is trusted, and who trusts us."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError, RetryableError
from ccagent.records.message import Message
from ccagent.transports.http import HttpSettings, HttpTransport
from tests.support.certificates import Authority
from tests.support.http_server import Server, answer_and_hang_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "eyJhbGciOiJFZERTQSJ9.e30.c2ln"


@pytest.fixture
def serve(authority: Authority) -> Iterator[Callable[..., Server]]:
    """Start servers with certificates of the authority."""
    made: list[Server] = []

    def start(**options: Any) -> Server:
        made.append(Server(authority.context("node", **options)))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


def message(body: bytes = b"{}") -> Message:
    return Message("fox", "c1-1", "sample", "sonar", 1_700_000_000.0, body)


def send(server: Server, *bodies: bytes, host: str = "127.0.0.1", **keys: Any) -> None:
    url = f"https://{host}:{server.server_port}/in"
    transport = HttpTransport(HttpSettings(url=url, **keys))
    try:
        transport.send([message(body) for body in bodies])
    finally:
        transport.close()


def test_a_private_ca(serve: Callable[..., Server], authority: Authority, token: str) -> None:
    server = serve()
    settings = HttpSettings(
        url=f"https://{server.place}/in", ca_file=authority.certificate, token_file=token
    )
    transport = HttpTransport(settings)
    server.script.extend([204, answer_and_hang_up, 204])
    transport.send([message(b"1"), message(b"2")])
    assert server.closed.wait(60)
    transport.send([message(b"3")])
    transport.close()
    assert [r.body for r in server.requests] == [b"1", b"2", b"3"]
    assert len({r.client for r in server.requests}) == 2
    assert server.requests[0].headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_ca_that_nobody_trusts(serve: Callable[..., Server], token: str) -> None:
    server = serve()
    with pytest.raises(RetryableError, match="certificate can't be trusted: .*issuer"):
        send(server, b"1", token_file=token)
    assert server.requests == []


def test_an_expired_certificate(serve: Callable[..., Server], authority: Authority) -> None:
    server = serve(expired=True)
    with pytest.raises(RetryableError, match="can't be trusted: certificate has expired"):
        send(server, b"1", ca_file=authority.certificate)
    assert server.requests == []


def test_a_certificate_for_another_host(serve: Callable[..., Server], authority: Authority) -> None:
    server = serve()
    with pytest.raises(RetryableError, match="certificate is not valid for 'localhost'"):
        send(server, b"1", host="localhost", ca_file=authority.certificate)
    assert server.requests == []


def test_insecure_trusts_everybody_and_is_said(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(expired=True)
    with caplog.at_level(logging.WARNING, "ccagent"):
        send(server, b"1", host="localhost", insecure=True)
    assert [r.body for r in server.requests] == [b"1"]
    assert ["insecure = true" in record.message for record in caplog.records] == [True]


def test_a_clear_server_where_tls_was_expected(authority: Authority) -> None:
    server = Server()
    with pytest.raises(
        RetryableError, match="perhaps the server does not speak TLS|no answer within"
    ):
        send(server, b"1", ca_file=authority.certificate, time_limit=Duration("2s"))
    server.stop()
    assert server.requests == []


def test_our_certificate(serve: Callable[..., Server], authority: Authority) -> None:
    server = serve(wants_client=True)
    certificate, key = authority.certify("client")
    keys = {"ca_file": authority.certificate, "certificate_file": certificate, "key_file": key}
    send(server, b"1", **keys)
    with pytest.raises(RetryableError):
        send(server, b"2", ca_file=authority.certificate)
    assert [r.body for r in server.requests] == [b"1"]


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.certify("client")
    copy = tmp_path / "key"
    copy.write_bytes(Path(key).read_bytes())
    copy.chmod(0o644)
    with pytest.raises(ConfigurationError, match=f"^{copy}: others can read"):
        HttpTransport(
            HttpSettings(url="https://h/", certificate_file=certificate, key_file=str(copy))
        )


def test_a_certificate_needs_its_own_key(authority: Authority) -> None:
    certificate, _ = authority.certify("one")
    _, key = authority.certify("other")
    with pytest.raises(ConfigurationError, match="key"):
        HttpTransport(HttpSettings(url="https://h/", certificate_file=certificate, key_file=key))
    with pytest.raises(ConfigurationError, match="certificate-file and key-file need each other"):
        HttpTransport(HttpSettings(url="https://h/", certificate_file=certificate))


def test_certificates_are_for_encrypted_connections(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="are for TLS only"):
        HttpTransport(HttpSettings(url="http://h/", ca_file=authority.certificate))


def tunnel(listening: socket.socket, server: Server, heard: list[bytes]) -> None:
    """Be a proxy for one connection."""
    client, _ = listening.accept()
    with client, socket.create_connection(("127.0.0.1", server.server_port)) as other:
        heard.append(client.recv(4096))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")

        def carry(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=carry, args=(other, client))
        back.start()
        carry(client, other)
        back.join()


def test_a_proxy_sees_only_the_host(
    serve: Callable[..., Server], authority: Authority, token: str
) -> None:
    server, heard = serve(), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = threading.Thread(target=tunnel, args=(listening, server, heard))
        proxy.start()
        place = f"http://127.0.0.1:{listening.getsockname()[1]}"
        send(server, b"1", b"2", proxy=place, ca_file=authority.certificate, token_file=token)
        proxy.join(5)
    assert [r.body for r in server.requests] == [b"1", b"2"]
    assert heard[0].startswith(f"CONNECT 127.0.0.1:{server.server_port} ".encode())
    assert TOKEN.encode() not in heard[0]


def test_a_proxy_gets_an_address_of_ipv6_in_brackets() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            client, _ = listening.accept()
            with client:
                heard.append(client.recv(4096))
                client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        proxy = threading.Thread(target=refuse)
        proxy.start()
        place = f"http://127.0.0.1:{listening.getsockname()[1]}"
        transport = HttpTransport(HttpSettings(url="https://[2001:db8::1]:8443/", proxy=place))
        with pytest.raises(RetryableError, match="403"):
            transport.send([message(b"1")])
        proxy.join()
    assert heard[0].startswith(b"CONNECT [2001:db8::1]:8443 ")
