"""`mqtts://` and `wss://` against a real mosquitto: whom they trust, and whom not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.errors import RetryableError
from ccagent.records.message import Message
from ccagent.transports.mqtt import MqttTransport
from tests.support.certificates import Authority
from tests.support.mqtt_broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable


def message() -> Message:
    return Message("fox", "c1-1", "sample", "sonar", 1_700_000_000.0, b"1")


def failure(transport: MqttTransport) -> str:
    with pytest.raises(RetryableError) as caught:
        transport.send([message()])
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_certificates(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    authority: Authority,
    scheme: str,
) -> None:
    ca = authority.certificate
    broker = serve(certificate=(ca, *authority.certify("good")))
    url = broker.url(scheme)
    assert failure(connect(url)).startswith(f"{url}: its certificate can't be trusted: self")
    other = broker.url(scheme, "localhost")
    assert "Hostname mismatch, certificate is not valid for 'localhost'" in failure(
        connect(other, ca_file=ca)
    )
    connect(other, insecure=True).send([message()])
    expired = serve(certificate=(ca, *authority.certify("expired", expired=True)))
    assert failure(connect(expired.url(scheme), ca_file=ca)).endswith(
        "its certificate can't be trusted: certificate has expired"
    )


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_our_own_certificate(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    authority: Authority,
    scheme: str,
) -> None:
    ca = authority.certificate
    broker = serve(
        certificate=(ca, *authority.certify("broker")), more={"require_certificate": "true"}
    )
    text = failure(connect(broker.url(scheme), ca_file=ca))
    assert "the server requires a client certificate" in text or "TLS was broken off" in text
    certificate, key = authority.certify("node")
    keys = {"ca_file": ca, "certificate_file": certificate, "key_file": key}
    connect(broker.url(scheme), **keys).send([message()])


def test_tls_and_clear(
    serve: Callable[..., Broker], connect: Callable[..., MqttTransport], authority: Authority
) -> None:
    broker = serve(certificate=(authority.certificate, *authority.certify("broker")))
    place = f"127.0.0.1:{broker.ports['mqtts']}"
    text = failure(connect(f"mqtt://{place}"))
    assert text == f"mqtt://{place}: no broker of MQTT 5 answers there, or it expects TLS"
    place = f"127.0.0.1:{broker.ports['mqtt']}"
    text = failure(connect(f"mqtts://{place}", ca_file=authority.certificate))
    assert text == (
        f"mqtts://{place}: TLS was broken off: the server may not speak TLS, or require a key-file"
    )
