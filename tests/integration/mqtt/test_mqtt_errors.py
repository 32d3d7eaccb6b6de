"""`mqtt://` and its kin when things go wrong: what is said, and what becomes of the messages."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import RejectedError, RetryableError, TooLargeError, TransportError
from ccagent.records.message import Message
from ccagent.transports.mqtt import MqttTransport
from tests.support.mqtt_broker import Broker, Pretender, Subscriber, packet, wait_for
from tests.support.ports import free_port

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

PASSWORD = "correct horse: battery/staple"
WRONG = "wrong-horse"


@pytest.fixture
def pretend() -> Iterator[Callable[..., str]]:
    """Start servers that follow a script; give their host and port."""
    made: list[Pretender] = []

    def start(script: Callable[[Pretender, socket.socket], None]) -> str:
        made.append(Pretender(script))
        return f"127.0.0.1:{made[-1].port}"

    yield start
    for server in made:
        server.stop()


def message(body: bytes = b"1", kind: str = "sample", number: str = "") -> Message:
    return Message("fox", "c1-1", kind, "sonar", 1_700_000_000.0, body, "", number)


def failure(
    transport: MqttTransport,
    *messages: Message,
    error: type[RejectedError | RetryableError] = RetryableError,
) -> str:
    """Send and give the error's text, which is one printable sentence."""
    with pytest.raises(error) as caught:
        transport.send(messages or [message()])
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 300
    assert PASSWORD not in text
    assert WRONG not in text
    return text


def tell(answer: bytes, *, after: int = 1) -> Callable[[Pretender, socket.socket], None]:
    """Answer so after so many packets, and hang."""

    def script(server: Pretender, connected: socket.socket) -> None:
        for _ in range(after):
            packet(connected)
        connected.sendall(answer)
        server.hang()

    return script


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_logins(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    secret: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    protocol: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = serve(passwords={"node": PASSWORD})
    assert failure(connect(broker.url(), protocol=protocol)).endswith(
        "the broker refuses the login (not authorized): the broker wants a user and password, "
        "or no right to fox/status/c1-1"
    )
    path = secret(WRONG)
    transport = connect(broker.url(), protocol=protocol, user="node", password_file=path)
    assert "the broker refuses the login (not authorized): wrong user or password" in failure(
        transport
    )
    secret(PASSWORD)
    transport.send([message()])
    broker.set_passwords({"node": "changed"})
    broker.reload()
    broker.kill()
    broker.start()
    assert "wrong user or password" in failure(transport)
    secret("changed")
    transport.send([message()])
    assert PASSWORD not in caplog.text
    assert WRONG not in caplog.text


def test_a_secret_that_went_away_may_come_back(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    secret: Callable[[str], str],
    tmp_path: Path,
) -> None:
    broker = serve(passwords={"node": PASSWORD})
    transport = connect(broker.url(), user="node", password_file=secret(PASSWORD))
    (tmp_path / "secret").unlink()
    assert failure(transport) == f"{tmp_path / 'secret'}: No such file or directory"
    secret(PASSWORD)
    transport.send([message()])


def test_no_such_host(connect: Callable[..., MqttTransport]) -> None:
    text = failure(connect("mqtt://nowhere.invalid"))
    assert text.startswith("mqtt://nowhere.invalid: the name does not resolve: ")


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_nobody_listens(connect: Callable[..., MqttTransport], scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    assert failure(connect(url)) == f"{url}: connection refused"


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_a_server_that_never_answers(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], scheme: str
) -> None:
    url = f"{scheme}://{pretend(tell(b'', after=0))}"
    begin = time.monotonic()
    text = failure(connect(url, time_limit=Duration("300ms")))
    assert 0.25 < time.monotonic() - begin < 30
    said = "the connection is accepted, but no answer" if scheme == "mqtt" else "no answer"
    assert text == f"{url}: {said} within 0.3 s"


def test_a_broker_that_falls_silent(
    serve: Callable[..., Broker], connect: Callable[..., MqttTransport]
) -> None:
    broker = serve()
    transport = connect(broker.url(), time_limit=Duration("300ms"))
    transport.send([message()])
    broker.pause()
    try:
        for body in (b"1", bytes(20_000_000)):
            text = failure(transport, message(body))
            assert text.endswith(
                (
                    "no acknowledgement came within 0.3 s",
                    "the connection is accepted, but no answer within 0.3 s",
                )
            )
    finally:
        broker.go_on()
    transport.send([message()])


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_server_that_drips(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], scheme: str
) -> None:
    def script(_: Pretender, connected: socket.socket) -> None:
        for byte in b"\x20\x7fHTTP/1.1 101 Switching Protocols\r\nX-Slow: " + b"x" * 80:
            connected.sendall(bytes([byte]))
            time.sleep(0.05)

    begin = time.monotonic()
    text = failure(connect(f"{scheme}://{pretend(script)}", time_limit=Duration("300ms")))
    assert 0.25 < time.monotonic() - begin < 30
    assert text.endswith(" within 0.3 s")


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + b" " * 100,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 5000\r\n\r\n" + b"no\n" * 100,
        b"SSH-2.0-OpenSSH_9.2\r\n" + b"\0" * 300,
        b"\xff\xff\xff\xff\xff\xff\r\n\r\n",
        b"\x40\x04\x00\x01\x95\x00",
        b"\x20\x02\x00\x07",
        b"\x20\x03\x00\x79\x00",
        b"",
    ],
)
def test_what_is_not_mqtt(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], scheme: str, answer: bytes
) -> None:
    def script(server: Pretender, connected: socket.socket) -> None:
        connected.recv(4096)
        connected.sendall(answer)

    url = f"{scheme}://{pretend(script)}"
    text = failure(connect(url, time_limit=Duration("2s")))
    if scheme == "ws":
        assert text == f"{url}: no WebSocket for MQTT at /mqtt"
    else:
        assert text.startswith(
            (
                f"{url}: no broker of MQTT 5 answers there, or it expects TLS",
                f"{url}: the answer is not MQTT",
            )
        )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"\x20\x03\x00\x84\x00", "the broker does not speak this version of MQTT: set protocol"),
        (b"\x20\x03\x00\x89\x00", "the broker refuses the connection: server busy"),
        (b"\x20\x03\x00\x9a\x00", "the broker retains no messages: set status-topic"),
        (b"\x20\x05\x00\x00\x02\x24\x00", "the broker offers no QoS 1: set qos"),
        (b"\x20\x05\x00\x00\x02\x25\x00", "the broker retains no messages: set status-topic"),
        (
            b"\x20\x03\x00\x00\x00\xe0\x06\x8e\x04\x1f\x00\x01x",
            "session taken over: another client has the id ccagent-c1-1",
        ),
        (b"\x20\x03\x00\x00\x00", "no acknowledgement came within 0.3 s"),
    ],
)
def test_what_a_broker_may_answer(
    pretend: Callable[..., str],
    connect: Callable[..., MqttTransport],
    answer: bytes,
    expected: str,
) -> None:
    transport = connect(f"mqtt://{pretend(tell(answer))}", time_limit=Duration("300ms"))
    assert expected in failure(transport)


def test_a_broker_of_another_version(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport]
) -> None:
    url = f"mqtt://{pretend(tell(bytes([0x20, 2, 0, 1])))}"
    text = failure(connect(url, protocol="3.1.1"))
    assert text == f"{url}: no broker of MQTT 3.1.1 answers there, or it expects TLS"


@pytest.mark.parametrize(
    ("reason", "error", "is_about_message"),
    [
        (0x80, RetryableError, True),
        (0x83, RetryableError, True),
        (0x87, RetryableError, True),
        (0x90, RetryableError, True),
        (0x91, RetryableError, False),
        (0x95, TooLargeError, None),
        (0x97, RetryableError, False),
        (0x99, RejectedError, None),
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message(
    pretend: Callable[..., str],
    connect: Callable[..., MqttTransport],
    reason: int,
    error: type[RejectedError | RetryableError],
    is_about_message: bool | None,
    qos: int,
) -> None:
    taken: list[bytes] = []

    def script(_: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        while True:
            first, content = packet(connected)
            if first & 0xF0 == 0x60:
                connected.sendall(b"\x70\x02" + content[:2])
            if first & 0xF0 != 0x30:
                continue
            end = 2 + int.from_bytes(content[:2], "big")
            number, body = content[end : end + 2], content[end + 3 :]
            answer = b"\x40" if qos == 1 else b"\x50"
            if body == b"refuse":
                connected.sendall(answer + b"\x04" + number + bytes([reason, 0]))
            else:
                taken.append(body)
                connected.sendall(answer + b"\x02" + number)

    url = f"mqtt://{pretend(script)}"
    transport = connect(url, status_topic="", qos=qos)
    with pytest.raises(
        (RejectedError, RetryableError), match="refuses a message of 6 bytes to fox"
    ) as caught:
        transport.send([message(b"1"), message(b"2"), message(b"refuse")])
    assert type(caught.value) is error
    assert getattr(caught.value, "is_about_message", None) is is_about_message
    assert getattr(caught.value, "is_busy", False) is (is_about_message is False)
    assert caught.value.delivered == 2
    assert taken == [b"1", b"2"]
    transport.send([message(b"3")])
    assert taken == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_no_right_to_publish(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    qos: int,
) -> None:
    (tmp_path / "acl").write_text("topic readwrite fox/sample/#\n")
    transport = connect(serve(f"acl_file {tmp_path / 'acl'}").url(), qos=qos)
    with pytest.raises(RetryableError) as caught:
        transport.send([message(), message(), message(b"22", "job"), message()])
    assert caught.value.is_about_message
    assert str(caught.value).endswith(
        "the broker refuses a message of 2 bytes to fox/job/c1-1: not authorized"
    )
    assert caught.value.delivered == 2
    assert "the broker refuses fox/status/c1-1" in caplog.text
    transport.send([message()])


@pytest.mark.parametrize(
    ("limit", "protocol", "qos", "expected"),
    [
        (
            "message_size_limit 1000",
            "5",
            1,
            "a message of 2000 bytes to fox/sample/c1-1: too large",
        ),
        (
            "message_size_limit 1000",
            "5",
            2,
            "a message of 2000 bytes to fox/sample/c1-1: too large",
        ),
        ("max_packet_size 1000", "5", 1, "a message of 2035 bytes: the broker takes at most 1000"),
        ("max_packet_size 1000", "3.1.1", 1, "perhaps it is too large for the broker"),
        ("max_packet_size 1000", "3.1.1", 2, "perhaps it is too large for the broker"),
    ],
)
def test_payload_above_the_limit(
    serve: Callable[..., Broker],
    connect: Callable[..., MqttTransport],
    limit: str,
    protocol: str,
    qos: int,
    expected: str,
) -> None:
    broker = serve(limit)
    subscriber = Subscriber(broker, "fox/sample/#")
    transport = connect(broker.url(), protocol=protocol, qos=qos)
    bodies = [b"%d" % n for n in range(200)]
    bodies[50] = bytes(2000)
    left = [message(body, number=f"id-{n}") for n, body in enumerate(bodies)]
    refused: list[str] = []
    errors = 0
    try:
        while left:
            try:
                transport.send(left)
                left = []
            except RetryableError as error:
                del left[: error.delivered]
                errors += 1
                assert errors < 10
                if error.is_about_message:
                    refused.append(f"{left[0].id}: {error}")
                    del left[0]
            except TooLargeError as error:
                refused.append(f"{left[error.delivered].id}: {error}")
                del left[: error.delivered + 1]
        assert len(refused) == 1
        assert refused[0].startswith("id-50: ")
        assert expected in refused[0]
        wait_for(lambda: bodies[-1] in subscriber.payloads(0))
        got = list(dict.fromkeys(subscriber.payloads(0)))
        assert got == [body for body in bodies if len(body) < 2000]
    finally:
        subscriber.stop()


def test_the_size_on_the_wire_is_known_exactly(
    serve: Callable[..., Broker], connect: Callable[..., MqttTransport]
) -> None:
    transport = connect(serve("max_packet_size 300").url())
    around = 3 + 2 + len("fox/sample/c1-1") + 2 + 1 + 7 + len("id-1")
    transport.send([message(bytes(300 - around), number="id-1")])
    assert transport.largest_body is not None
    assert 300 - 200 < transport.largest_body < 300 - around
    transport.send([message(bytes(transport.largest_body), number="x" * 64)])
    text = failure(transport, message(bytes(301 - around), number="id-1"), error=RejectedError)
    assert text.endswith("a message of 301 bytes: the broker takes at most 300")
    with pytest.raises(TooLargeError) as caught:
        transport.send([message(bytes(301 - around), number="id-1")])
    assert caught.value.limit == transport.largest_body
    transport.send([message()])


def test_a_proxy_with_a_dead_backend_rejects_nothing(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport]
) -> None:
    def script(_: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        packet(connected)

    transport = connect(f"mqtt://{pretend(script)}", status_topic="")
    for _ in range(8):
        text = failure(transport, message(number="id-1"), message(number="id-2"))
        assert "the broker closed the connection" in text


@pytest.mark.parametrize("answer", ["", "e002950000"])
def test_a_message_is_to_blame_only_if_it_was_alone(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], answer: str
) -> None:
    def script(_: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        packet(connected)
        connected.sendall(bytes.fromhex(answer)[:4])

    transport = connect(f"mqtt://{pretend(script)}", status_topic="")
    with pytest.raises(RetryableError) as together:
        transport.send([message(), message()])
    assert not together.value.is_about_message
    with pytest.raises(TransportError) as alone:
        transport.send([message(), message()])
    assert "when a message of 1 bytes to fox/sample/c1-1 came" in str(alone.value)
    if answer:
        assert isinstance(alone.value, TooLargeError)
    else:
        assert isinstance(alone.value, RetryableError)
        assert alone.value.is_about_message


@pytest.mark.parametrize("reason", [0x8B, 0x8D, 0x8E, 0x98, 0x9C])
def test_a_broker_that_leaves_for_reasons_of_its_own(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], reason: int
) -> None:
    def script(_: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        packet(connected)
        connected.sendall(bytes([0xE0, 2, reason, 0]))

    transport = connect(f"mqtt://{pretend(script)}", status_topic="")
    with pytest.raises(RetryableError, match="the broker ended the connection") as caught:
        transport.send([message()])
    assert not caught.value.is_about_message


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            b"\x30\xff\xff\xff\x7f" + bytes(1000),
            "the broker sends messages that were not asked for",
        ),
        (b"\x30\x00", "the broker sends messages that were not asked for"),
        (b"\x34\x05\x00\x01a\x00\x01" * 1000, "the broker sends messages that were not asked for"),
        (b"\x62\x02\x00\x01" * 1000, "the broker sends an unexpected packet of type 6"),
        (b"\xc0\x00" * 1000, "the broker sends an unexpected packet of type 12"),
        (b"\x50\x02\x00\x01" * 1000, "the broker repeats an acknowledgement again and again"),
        (b"\x20\x03\x00\x00\x00", "the broker sends an unexpected packet of type 2"),
        (b"\xe0\xff\xff\x7f" + bytes(1000), "the broker sends a packet of more than 65536 bytes"),
        (b"\x40\x80\x80\x80\x80\x80", "the broker sends a packet whose length has no end"),
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_asked_for_ends_the_connection(
    pretend: Callable[..., str],
    connect: Callable[..., MqttTransport],
    sent: bytes,
    expected: str,
    qos: int,
) -> None:
    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x03\x00\x00\x00")
        packet(connected)
        connected.sendall(sent)
        server.hang()

    transport = connect(f"mqtt://{pretend(script)}", status_topic="", qos=qos)
    with pytest.raises(RetryableError) as caught:
        transport.send([message()])
    assert expected in str(caught.value)
    assert not caught.value.is_about_message


@pytest.mark.parametrize("seconds", [0, 1])
def test_the_keep_alive_of_the_broker_makes_no_busy_loop(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], seconds: int
) -> None:
    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x06\x00\x00\x03\x13\x00" + bytes([seconds]))
        end = packet(connected)[1]
        begin = 2 + int.from_bytes(end[:2], "big")
        connected.sendall(b"\x40\x02" + end[begin : begin + 2])
        server.hang()

    transport = connect(f"mqtt://{pretend(script)}", status_topic="")
    transport.send([message()])
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2


def test_no_reason_of_a_broker_shows_a_secret(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport], secret: Callable[[str], str]
) -> None:
    said = PASSWORD.encode()
    reason = b"\x1f" + len(said).to_bytes(2, "big") + said
    properties = bytes([len(reason)]) + reason

    def script(server: Pretender, connected: socket.socket) -> None:
        packet(connected)
        if server.connections == 1:
            refusal = b"\x00\x87" + properties
            connected.sendall(bytes([0x20, len(refusal)]) + refusal)
            return
        connected.sendall(b"\x20\x03\x00\x00\x00")
        packet(connected)
        farewell = b"\x8b" + properties
        connected.sendall(bytes([0xE0, len(farewell)]) + farewell)

    keys = {"user": "node", "password_file": secret(PASSWORD), "status_topic": ""}
    transport = connect(f"mqtt://{pretend(script)}", **keys)
    assert "the broker refuses the login" in failure(transport)
    assert "the broker ended the connection: server shutting down" in failure(transport)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_one_shot_leaves_the_status_of_the_daemon_alone(
    serve: Callable[..., Broker], connect: Callable[..., MqttTransport], protocol: str
) -> None:
    broker = serve()
    daemon = connect(broker.url(), protocol=protocol)
    daemon.send([message(b"1")])
    subscriber = Subscriber(broker)
    try:
        for _ in range(2):
            once = connect(broker.url(), protocol=protocol)
            once.is_one_shot = True
            once.send([message(b"2")])
            once.close()
        daemon.send([message(b"3")])
        got = [m.payload for m in subscriber.messages(4)]
    finally:
        subscriber.stop()
    assert got == [b"online", b"2", b"2", b"3"]
    assert f"ccagent-c1-1-once-{os.getpid()}" in broker.log
    assert "Will message" not in broker.log.partition("-once-")[2].partition("as ccagent")[0]


def test_a_broker_that_closes_when_the_status_comes(
    pretend: Callable[..., str], connect: Callable[..., MqttTransport]
) -> None:
    def script(_: Pretender, connected: socket.socket) -> None:
        packet(connected)
        connected.sendall(b"\x20\x02\x00\x00")
        packet(connected)

    transport = connect(f"mqtt://{pretend(script)}", protocol="3.1.1")
    for _ in range(5):
        assert failure(transport).endswith(
            "the broker closed the connection: perhaps this user may not publish to fox/status/c1-1"
        )


@pytest.mark.parametrize("key", ["cluster", "node", "kind"])
@pytest.mark.parametrize("value", ["", "a/b", "a+", "#", "x" * 66000])
def test_values_that_no_topic_can_hold(
    serve: Callable[..., Broker], connect: Callable[..., MqttTransport], key: str, value: str
) -> None:
    transport = connect("mqtt://127.0.0.1:1", client_id="x", status_topic="")
    fields = {"cluster": "fox", "node": "n", "kind": "sample"} | {key: value}
    bad = Message(**fields, format="sonar", time=1.0, body=b"1")
    transport = connect(serve().url(), client_id="x", status_topic="")
    with pytest.raises(RejectedError) as caught:
        transport.send([message(), bad, message()])
    assert caught.value.delivered == 1
    assert len(str(caught.value)) < 300


def test_a_node_that_no_status_topic_can_hold(connect: Callable[..., MqttTransport]) -> None:
    bad = Message("fox", "a/b", "sample", "sonar", 1.0, b"1")
    text = failure(connect("mqtt://127.0.0.1:1"), bad)
    assert text == "mqtt://127.0.0.1:1: the node 'a/b' can't be a level of a topic"
