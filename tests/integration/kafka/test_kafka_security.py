"""`kafka://` with logins, and `kafkas://`: who is trusted, and who trusts us."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import RetryableError
from tests.support.certificates import Authority
from tests.support.kafka_cluster import (
    PASSWORD,
    Cluster,
    Connections,
    Proxy,
    bodies,
    message,
    messages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ccagent.records.message import Message
    from ccagent.transports.kafka import KafkaTransport


@pytest.fixture
def serve(cluster: Cluster) -> Iterator[Callable[..., Proxy]]:
    """Start proxies before the cluster, with TLS if there is a context."""
    made: list[Proxy] = []

    def start(context: ssl.SSLContext | None = None) -> Proxy:
        made.append(Proxy(cluster, context))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.mark.parametrize(
    ("mechanism", "user", "expected"),
    [
        ("PLAIN", "", "fox"),
        ("SCRAM-SHA-256", "ingest", "ingest"),
        ("SCRAM-SHA-512", "", "fox"),
    ],
)
def test_a_password_goes_with_the_user_or_the_cluster(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    connect: Connections,
    secret: Callable[[str], str],
    mechanism: str,
    user: str,
    expected: str,
) -> None:
    proxy = serve()
    keys = {"user": user, "password_file": secret(PASSWORD), "sasl_mechanism": mechanism}
    connect(f"kafka://127.0.0.1:{proxy.port}", **keys).send(messages(2))
    assert set(proxy.logins) == {(expected, mechanism)}
    assert cluster.bodies() == bodies(messages(2))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_can_be_replaced_and_is_never_shown(
    serve: Callable[..., Proxy],
    connect: Connections,
    secret: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"kafka://127.0.0.1:{serve().port}"
    transport = connect(url, password_file=secret("hidden"), sasl_mechanism=mechanism)
    begin = time.monotonic()
    with pytest.raises(
        RetryableError, match="login as 'fox' failed: .*(Invalid password|withheld)"
    ) as caught:
        transport.send([message()])
    assert time.monotonic() - begin < 60
    assert "hidden" not in str(caught.value) + caplog.text
    secret("")
    with pytest.raises(RetryableError, match="its first line holds no secret"):
        transport.send([message()])
    secret(PASSWORD)
    transport.send([message()])


def test_a_mechanism_that_the_broker_lacks(
    serve: Callable[..., Proxy], connect: Connections, secret: Callable[[str], str]
) -> None:
    proxy = serve()
    proxy.mechanisms = ["PLAIN"]
    keys = {"password_file": secret(PASSWORD), "sasl_mechanism": "SCRAM-SHA-512"}
    reason = "login as 'fox' failed: .*SCRAM-SHA-512.*supported mechanisms: PLAIN$"
    with pytest.raises(RetryableError, match=reason):
        connect(f"kafka://127.0.0.1:{proxy.port}", **keys).send([message()])


def test_a_broker_without_logins(
    cluster: Cluster, connect: Connections, secret: Callable[[str], str]
) -> None:
    with pytest.raises(RetryableError, match="login as 'fox' failed: .*not supported by broker"):
        connect(f"kafka://{cluster.place}", password_file=secret(PASSWORD)).send([message()])


def send(transport: KafkaTransport, wanted: list[Message]) -> None:
    """Send as the outbox does: on a busy machine the mock cluster may hang up on a connection."""
    for patience in (0.2, 0.5, 1.0, 0.0):
        try:
            transport.send(wanted)
        except RetryableError as error:
            if not patience or error.delivered:
                raise
            time.sleep(patience)
        else:
            return


def test_tls_with_a_login_and_a_private_ca(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    secret: Callable[[str], str],
) -> None:
    proxy = serve(authority.context("node"))
    keys = {"ca_file": authority.certificate, "password_file": secret(PASSWORD)}
    send(connect(f"kafkas://127.0.0.1:{proxy.port}", **keys), messages(2))
    assert set(proxy.logins) == {("fox", "PLAIN")}
    assert cluster.bodies() == bodies(messages(2))


def test_tls_with_a_certificate_of_the_client(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"kafkas://127.0.0.1:{serve(authority.context('node', wants_client=True)).port}"
    with pytest.raises(RetryableError, match="certificate required"):
        connect(url, ca_file=authority.certificate, limit="700ms").send([message(0)])
    certificate, _ = authority.certify("client")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(authority.directory))
    own = {"certificate_file": certificate, "key_file": "credential:client.key"}
    connect(url, ca_file=authority.certificate, **own).send([message(1)])
    assert cluster.bodies() == [message(1).body]


@pytest.mark.parametrize(
    ("expired", "host", "trusted", "reason"),
    [
        (True, "127.0.0.1", True, "certificate has expired"),
        (False, "127.0.0.1", False, "unable to get local issuer certificate"),
        (False, "localhost", True, "is not valid for 'localhost'"),
    ],
)
def test_a_certificate_that_cant_be_trusted(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    expired: bool,
    host: str,
    trusted: bool,
    reason: str,
) -> None:
    url = f"kafkas://{host}:{serve(authority.context('node', expired=expired)).port}"
    with pytest.raises(RetryableError, match=f"^{url}: .* can't be trusted: .*{reason}"):
        connect(url, ca_file=authority.certificate if trusted else "", limit="700ms").send(
            [message()]
        )
    assert cluster.bodies() == []


def test_a_certificate_whose_fault_is_gone_when_it_is_looked_at(
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"kafkas://127.0.0.1:{serve(authority.context('node')).port}"
    monkeypatch.setenv("SSL_CERT_FILE", authority.certificate)  # Python reads it, librdkafka not
    with pytest.raises(RetryableError, match="certificate verify failed"):
        connect(url, limit="700ms").send([message()])


def test_a_broker_that_is_gone_when_its_certificate_is_looked_at(
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: tuple[str, int], **_: object) -> None:
        raise ConnectionRefusedError

    url = f"kafkas://127.0.0.1:{serve(authority.context('node')).port}"
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(RetryableError, match="certificate verify failed"):
        connect(url, limit="700ms").send([message()])


def test_a_file_that_is_damaged_after_the_start_can_be_mended(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    tmp_path: Path,
) -> None:
    ca, right = tmp_path / "ca.pem", (authority.directory / "ca.pem").read_text()
    ca.write_text(right)
    transport = connect(
        f"kafkas://127.0.0.1:{serve(authority.context('node')).port}", ca_file=str(ca)
    )
    ca.write_text("damaged")
    with pytest.raises(RetryableError, match=r"ssl\.ca\.location"):
        transport.send([message()])
    ca.write_text(right)
    transport.send([message()])
    assert cluster.bodies() == [message().body]


def test_insecure_trusts_anybody_and_is_said(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = serve(authority.context("node", expired=True))
    connect(f"kafkas://127.0.0.1:{proxy.port}", insecure=True).send([message()])
    assert cluster.bodies() == [message().body]
    assert "the server is not verified" in caplog.text


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [("kafka", "wants TLS|SSL listener"), ("kafkas", "PLAINTEXT broker|speak TLS")],
)
def test_tls_on_one_side_only(
    cluster: Cluster,
    serve: Callable[..., Proxy],
    authority: Authority,
    connect: Connections,
    scheme: str,
    reason: str,
) -> None:
    port = cluster.port if scheme == "kafkas" else serve(authority.context("node")).port
    with pytest.raises(RetryableError, match=f"^{scheme}://127.0.0.1:{port}: .*({reason})"):
        connect(f"{scheme}://127.0.0.1:{port}", limit="700ms").send([message()])
