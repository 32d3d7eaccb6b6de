"""The connection itself: subscriptions, received messages, and how many may be in flight."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.net.mqtt import MqttConnection
from ccagent.net.mqtt_broker import LastWill, MqttLostError, MqttOptions, ReceivedMessage
from ccagent.transports.mqtt import MqttSettings
from tests.support.mqtt_broker import Broker, Pretender, Subscriber, packet, wait_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def options(url: str, name: str = "x", **keys: Any) -> MqttOptions:
    return MqttOptions(MqttSettings(url=url, **keys), name, None)


def serve_until(connection: MqttConnection, condition: Callable[[], bool]) -> None:
    """Read from the broker until a condition is true."""

    def is_met() -> bool:
        connection.turn(connection.poll(0.01))
        return condition()

    wait_for(is_met)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_an_unconfirmed_message_comes_again(broker: Broker, protocol: str) -> None:
    got: list[ReceivedMessage] = []
    asked = options(broker.url(), protocol=protocol)
    first = MqttConnection(asked, on_message=got.append)
    first.subscribe(["a/+"])
    sender = MqttConnection(options(broker.url(), "sender"))
    serve_until(first, lambda: "Received SUBSCRIBE from x" in broker.log)
    for body in (b"1", b"2"):
        sender.publish(0, "a/b", body)
    sender.settle()
    sender.close()
    serve_until(first, lambda: len(got) == 2)
    first.confirm(got[0])
    first.abandon()
    second = MqttConnection(asked, on_message=got.append)
    assert second.has_session
    serve_until(second, lambda: len(got) == 3)
    assert [(each.payload, each.is_repeated) for each in got] == [
        (b"1", False),
        (b"2", False),
        (b"2", True),
    ]
    second.close()


def test_a_refused_subscription_is_noted() -> None:
    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        _, content = packet(connected)
        connected.sendall(b"\x90\x05" + content[:2] + b"\x00\x01\x87")
        server.hang()

    server = Pretender(script)
    try:
        asked = options(f"mqtt://127.0.0.1:{server.port}")
        connection = MqttConnection(asked, on_message=lambda _: None)
        connection.subscribe(["a/b", "c/d"])
        serve_until(connection, lambda: bool(connection.refused_filters))
        assert connection.refused_filters == {"c/d": "not authorized"}
        connection.abandon()
    finally:
        server.stop()


def test_the_broker_limits_the_messages_in_flight() -> None:
    received: list[int] = []

    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x06\x00\x00\x03\x21\x00\x03")
        while True:
            received.append(packet(connected)[0] & 0xF0)

    server = Pretender(script)
    try:
        connection = MqttConnection(options(f"mqtt://127.0.0.1:{server.port}"))
        sent = 0
        while connection.has_room(1, reserve=1):
            connection.publish(sent, "a", b"x")
            sent += 1
        assert sent == 2
        assert connection.has_room(1)
        wait_for(lambda: received == [0x30, 0x30])
        connection.abandon()
    finally:
        server.stop()


def test_a_broker_without_the_qos_is_named_with_the_remedy() -> None:
    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x05\x00\x00\x02\x24\x00")
        server.hang()

    server = Pretender(script)
    try:
        asked = options(f"mqtt://127.0.0.1:{server.port}")._replace(qos_hint=", which FAST needs")
        with pytest.raises(MqttLostError, match=r"^the broker offers no QoS 1, which FAST needs$"):
            MqttConnection(asked)
    finally:
        server.stop()


def test_a_descriptor_ends_the_wait(broker: Broker) -> None:
    connection = MqttConnection(options(broker.url()))
    read, write = os.pipe()
    try:
        os.write(write, b"x")
        assert connection.poll(600.0, wake_up=read) == 0
    finally:
        os.close(read)
        os.close(write)
        connection.close()


def test_closing_publishes_the_last_will_and_logs_off(
    broker: Broker, listen: Callable[..., Subscriber]
) -> None:
    subscriber = listen(broker, "w")
    asked = options(broker.url())._replace(will=LastWill("w", b"gone"))
    MqttConnection(asked).close()
    assert [got.payload for got in subscriber.messages(1)] == [b"gone"]
    wait_for(lambda: "Received DISCONNECT from x" in broker.log)
