"""`mqtt://` and its kin against a real mosquitto: what arrives, and where."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import RetryableError
from ccagent.records.message import Message
from ccagent.transports.mqtt import MqttTransport
from tests.support.certificates import Authority
from tests.support.mqtt_broker import Broker, Pretender, Subscriber, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    made = Broker(
        tmp_path_factory.mktemp("broker"),
        certificate=(authority.certificate, *authority.certify("broker")),
    )
    yield made
    made.kill()


def message(
    body: bytes = b'{"a":1}',
    kind: str = "sample",
    *,
    prefix: str = "",
    node: str = "c1-1",
    number: str = "",
    cluster: str = "fox",
) -> Message:
    return Message(cluster, node, kind, "sonar", 1_700_000_000.0, body, prefix, number)


def batch(count: int, begin: int = 0, size: int = 0) -> list[Message]:
    numbers = range(begin, begin + count)
    return [message((b"%d" % n).ljust(size), number=f"id-{n}") for n in numbers]


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_arrive_in_order(
    shared: Broker,
    authority: Authority,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    scheme: str,
    protocol: str,
    qos: int,
) -> None:
    subscriber = listen(shared, "fox/sample/#")
    keys = {"ca_file": authority.certificate} if scheme in {"mqtts", "wss"} else {}
    transport = connect(shared.url(scheme), protocol=protocol, qos=qos, **keys)
    transport.send(batch(300))
    transport.send([])
    transport.send(batch(300, 300))
    messages = subscriber.messages(600)
    assert [m.payload for m in messages] == [b"%d" % n for n in range(600)]
    assert {m.topic for m in messages} == {"fox/sample/c1-1"}
    names = [m.properties.get("UserProperty") for m in messages]
    expected = [("id", f"id-{n}") for n in range(600)] if protocol == "5" else [None] * 600
    assert [name and tuple(name[0]) for name in names] == expected


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_large_messages_on_a_slow_line(
    shared: Broker,
    authority: Authority,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    scheme: str,
) -> None:
    subscriber = listen(shared, "fox/sample/#")
    keys = {"ca_file": authority.certificate} if scheme in {"mqtts", "wss"} else {}
    transport = connect(shared.url(scheme), **keys)
    transport.send([message(b"first")])
    assert transport._connection is not None
    opened = transport._connection._client.opened
    assert opened is not None
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    bodies = [os.urandom(size) for size in (2_000_000, 10, 700_000, 700_000, *[5000] * 100, 1)]
    transport.send([message(body) for body in bodies])
    assert subscriber.payloads(1 + len(bodies))[1:] == bodies


@pytest.mark.parametrize(
    ("template", "prefix", "expected"),
    [
        ("{prefix}/{cluster}/{kind}/{node}", "", "fox/sample/c1-1"),
        ("{prefix}/{cluster}/{kind}/{node}", "site/a", "site/a/fox/sample/c1-1"),
        ("all/{node}-{kind}", "site", "all/c1-1-sample"),
        ("{cluster}/{kind}{prefix}", "", "fox/sample"),
        ("plain", "", "plain"),
    ],
)
def test_topics(
    broker: Broker,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    template: str,
    prefix: str,
    expected: str,
) -> None:
    subscriber = listen(broker)
    connect(broker.url(), topic=template, status_topic="").send([message(prefix=prefix)])
    assert [m.topic for m in subscriber.messages(1)] == [expected]


def test_the_latest_sysinfo_is_retained_on_demand(
    broker: Broker, connect: Callable[..., MqttTransport], listen: Callable[..., Subscriber]
) -> None:
    keys = {"status_topic": "", "client_id": "other"}
    connect(broker.url(), topic="a/{kind}/{node}", **keys).send([message(b"1", "sysinfo")])
    connect(broker.url(), retain_sysinfo=True).send(
        [message(b"2", "sysinfo"), message(b"3", "sysinfo"), message(b"4")]
    )
    got = listen(broker, "+/sysinfo/#").messages(1)
    time.sleep(0.1)
    assert [(m.topic, m.payload, m.retained) for m in got] == [("fox/sysinfo/c1-1", b"3", True)]


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_birth_and_farewell(
    broker: Broker,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    protocol: str,
    qos: int,
) -> None:
    status = "{prefix}/{cluster}/is/{node}"
    transport = connect(broker.url(), protocol=protocol, qos=qos, status_topic=status)
    subscriber = listen(broker)
    transport.send([message(prefix="s")])
    assert [(m.topic, m.payload, m.retained) for m in subscriber.messages(2)] == [
        ("s/fox/is/c1-1", b"online", True),
        ("s/fox/sample/c1-1", b'{"a":1}', False),
    ]
    transport.close()
    assert subscriber.payloads(3)[2:] == [b"offline"]
    transport.send([message(prefix="s")])
    assert subscriber.payloads(5)[3:] == [b"online", b'{"a":1}']


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_the_last_will_is_published_when_the_connection_breaks(
    broker: Broker,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    protocol: str,
) -> None:
    transport = connect(broker.url(), protocol=protocol)
    subscriber = listen(broker)
    transport.send([message()])
    assert transport._connection is not None
    transport._connection.abandon()
    assert subscriber.payloads(2, "fox/status/c1-1") == [b"online", b"offline"]


def test_an_idle_connection_is_kept_alive(
    broker: Broker,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccagent.net.mqtt_client.KEEP_ALIVE", 1)
    subscriber = listen(broker)
    transport = connect(broker.url())
    transport.send([message(b"1")])
    time.sleep(2.5)
    transport.send([message(b"2")])
    assert subscriber.payloads(3) == [b"online", b"1", b"2"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_the_session_stays_unless_its_packet_identifiers_matter(
    broker: Broker, connect: Callable[..., MqttTransport], protocol: str, qos: int
) -> None:
    transport = connect(broker.url(), protocol=protocol, qos=qos)
    transport.send([message()])
    version, clean = (2 if protocol == "3.1.1" else 5), int(qos == 2)
    assert f"as ccagent-c1-1 (p{version}, c{clean}, k60)" in broker.log


def test_a_new_connection_after_a_restart(
    broker: Broker, connect: Callable[..., MqttTransport], listen: Callable[..., Subscriber]
) -> None:
    transport = connect(broker.url())
    transport.send([message(b"1")])
    broker.kill()
    with pytest.raises(RetryableError, match="connection refused$") as caught:
        transport.send([message(b"2")])
    assert caught.value.delivered == 0
    broker.start()
    subscriber = listen(broker, "fox/sample/#")
    transport.send([message(b"2")])
    assert subscriber.payloads(1) == [b"2"]


@pytest.mark.parametrize(("protocol", "qos"), [("3.1.1", 1), ("5", 1), ("5", 2)])
def test_nothing_is_lost_while_the_broker_is_killed(
    broker: Broker,
    connect: Callable[..., MqttTransport],
    listen: Callable[..., Subscriber],
    protocol: str,
    qos: int,
) -> None:
    total, kills = 2000, 5
    subscriber = listen(broker, "fox/sample/#", keeps=True)
    broker.save()
    transport = connect(broker.url(), protocol=protocol, qos=qos)
    errors: list[str] = []

    def restart() -> None:
        broker.kill()
        subscriber.lost()
        broker.start()
        subscriber.wait()

    for number in range(kills):
        killer = threading.Timer(random.uniform(0.001, 0.015), restart)
        killer.start()
        left = batch(total // kills, number * total // kills, size=2048)
        while left:
            try:
                transport.send(left)
                left = []
            except RetryableError as error:
                errors.append(str(error))
                del left[: error.delivered]
                time.sleep(0.02)
        killer.join()
    assert errors
    wait_for(lambda: {int(payload) for payload in subscriber.payloads(0)} == set(range(total)))
    got = [int(payload) for payload in subscriber.payloads(total)]
    duplicates = sum(count - 1 for count in Counter(got).values())
    assert len(got) == total + duplicates
    assert duplicates <= kills * 400
    assert list(dict.fromkeys(got)) == list(range(total))


def test_what_the_broker_has_already_is_not_sent_again(
    broker: Broker, connect: Callable[..., MqttTransport], listen: Callable[..., Subscriber]
) -> None:
    subscriber = listen(broker, "fox/#")
    transport = connect(broker.url(), status_topic="")
    messages = batch(5)
    transport._ahead = frozenset({"id-1", "id-3"})
    transport.send(messages)
    assert subscriber.payloads(3) == [b"0", b"2", b"4"]
    transport.send(messages)
    assert subscriber.payloads(8)[3:] == [b"0", b"1", b"2", b"3", b"4"]


def test_close_waits_for_no_broker_that_hangs(
    broker: Broker, connect: Callable[..., MqttTransport]
) -> None:
    transport = connect(broker.url(), time_limit=Duration("1h"))
    transport.send([message()])
    broker.pause()
    begin = time.monotonic()
    transport.close()
    broker.go_on()
    assert time.monotonic() - begin < 60


def test_nothing_is_connected_before_the_first_message(
    connect: Callable[..., MqttTransport],
) -> None:
    server = Pretender(lambda _server, _connected: None)
    try:
        transport = connect(f"mqtt://127.0.0.1:{server.port}")
        transport.send([])
        transport.close()
    finally:
        server.stop()
    assert server.connections == 0
