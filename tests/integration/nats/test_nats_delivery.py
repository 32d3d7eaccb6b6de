"""`nats://`: nothing is lost and nothing stored twice, whatever the server refuses."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import RetryableError, TooLargeError
from tests.support.nats_server import (
    Bench,
    ScriptedServer,
    answer_pings,
    greet,
    message,
    numbered,
    wait_for,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext


def test_a_retry_is_stored_once(bench: Bench) -> None:
    server = bench.stream_server()
    messages = numbered(10)
    bench.connect(server.url, jetstream=True).send(messages[:7])
    bench.connect(server.url, jetstream=True).send(messages)
    assert [body for _, body, _ in server.stored()] == [m.body for m in messages]


def test_messages_behind_a_failed_one_are_stored_once_even_when_ids_are_forgotten(
    bench: Bench,
) -> None:
    server = bench.serve()
    server.add_stream("fox.sample", duplicate_window=0.1)
    messages = [message(b"0"), message(b"1", "sysinfo"), message(b"2"), message(b"3")]
    transport = bench.connect(server.url, jetstream=True)
    for expected in (1, 0):
        with pytest.raises(RetryableError, match="no stream takes the subject 'fox.sysinfo'") as c:
            transport.send(messages)
        assert c.value.delivered == expected
        messages = messages[expected:]
        time.sleep(0.3)
    server.add_stream("fox.sysinfo", name="sysinfo")
    transport.send(messages)
    assert [body for _, body, _ in server.stored()] == [b"0", b"2", b"3"]
    assert [body for _, body, _ in server.stored("sysinfo")] == [b"1"]


def test_a_server_that_is_killed_again_and_again_has_all_exactly_once(bench: Bench) -> None:
    server = bench.stream_server()
    messages = numbered(4000, 2000)
    transport = bench.connect(server.url, jetstream=True)
    delivered = kills = 0
    killer: threading.Thread | None = None
    while delivered < len(messages):
        if killer is None and kills < 5 and delivered >= 500 * (kills + 1):
            killer = threading.Thread(target=server.kill)
            killer.start()
            kills += 1
        try:
            transport.send(messages[delivered : delivered + 50])
        except RetryableError as error:
            delivered += error.delivered
            if killer is None:
                raise
            killer.join()
            killer = None
            server.start()
        else:
            delivered += len(messages[delivered : delivered + 50])
    assert kills == 5
    assert [body for _, body, _ in server.stored()] == [m.body for m in messages]


def test_a_restarted_server_is_found_at_the_next_send(bench: Bench) -> None:
    server = bench.stream_server()
    transport = bench.connect(server.url, jetstream=True)
    transport.send([message(b"1")])
    server.kill()
    with pytest.raises(RetryableError, match=f"^{server.url}: (connection refused|.* lost)$") as c:
        transport.send([message(b"2")])
    assert c.value.delivered == 0
    server.start()
    transport.send([message(b"3")])
    assert [body for _, body, _ in server.stored()] == [b"1", b"3"]


def test_what_is_pending_has_left_before_the_last_ping(bench: Bench) -> None:
    server = bench.pretend(answer_pings)
    bench.connect(server.url).send(numbered(300))
    bodies = [n for n, line in enumerate(server.got) if line.rstrip().isdigit()]
    assert len(bodies) == 300
    assert max(n for n, line in enumerate(server.got) if line == b"PING") > bodies[-1]


def test_a_lost_connection_is_noticed_at_once(bench: Bench) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected)
        for line in server.lines(connected):
            if line == b"PING":
                connected.sendall(b"PONG\r\n")
            if line.startswith(b"HPUB"):
                return

    server = bench.pretend(script)
    begin = time.monotonic()
    for jetstream in (False, True):
        with pytest.raises(RetryableError, match=f"^{server.url}: ") as caught:
            bench.connect(server.url, jetstream=jetstream, time_limit=Duration("60s")).send(
                numbered(2000, 2000) if jetstream else [message(b"\r\nHPUB\r\n")]
            )
        assert caught.value.delivered == 0
    assert time.monotonic() - begin < 50


def test_no_stream_for_the_subject_may_come(bench: Bench) -> None:
    server = bench.stream_server()
    transport = bench.connect(server.url, jetstream=True)
    with pytest.raises(RetryableError, match="no stream takes the subject 'bear.sample'$") as c:
        transport.send([message(), message(), message(cluster="bear"), message()])
    assert c.value.delivered == 2
    assert c.value.is_about_message


@pytest.mark.parametrize("jetstream", [False, True])
def test_a_payload_above_the_limit_is_refused_before_it_costs_the_connection(
    bench: Bench, jetstream: bool
) -> None:
    server = bench.serve("max_payload: 1000\n")
    server.add_stream("fox.>")
    overhead = len(f"NATS/1.0\r\nNats-Msg-Id: {message().id}\r\n\r\n") if jetstream else 0
    fits, too_large = message(b"x" * (1000 - overhead)), message(b"y" * (1001 - overhead))
    transport = bench.connect(server.url, jetstream=jetstream)
    expected = f"^{server.url}: 1001 bytes are more than the server takes \\(1000\\)$"
    with pytest.raises(TooLargeError, match=expected) as caught:
        transport.send([fits, too_large, message(b"z")])
    assert caught.value.delivered == 1
    assert caught.value.limit == transport.largest_body
    assert transport.largest_body is not None
    assert len(fits.body) - 64 <= transport.largest_body <= len(fits.body)
    transport.send([message(b"z" * transport.largest_body)])
    transport.send([message(b"z")])
    wait_for(lambda: server.count() == 4)
    assert "maximum payload" not in server.log.lower()


def test_a_message_above_the_limit_of_the_stream_is_refused(bench: Bench) -> None:
    server = bench.serve()
    server.add_stream("fox.>", max_msg_size=500)
    with pytest.raises(TooLargeError, match="fox.sample: message size exceeds") as caught:
        bench.connect(server.url, jetstream=True).send([message(), message(b"x" * 501)])
    assert caught.value.delivered == 1
    assert caught.value.limit is None


def test_a_full_stream_may_be_emptied(bench: Bench) -> None:
    server = bench.serve()
    server.add_stream("fox.>", max_msgs=3, discard="new")
    with pytest.raises(RetryableError, match="fox.sample: maximum messages exceeded") as caught:
        bench.connect(server.url, jetstream=True).send(numbered(5))
    assert caught.value.delivered == 3
    assert caught.value.is_about_message
    assert caught.value.is_busy


@pytest.mark.parametrize("jetstream", [False, True])
def test_a_right_that_is_missing_may_be_given(bench: Bench, jetstream: bool) -> None:
    server = bench.serve(
        'authorization { users: [ { user: "fox", password: "x", permissions: '
        '{ publish: ["fox.>", "$JS.>"] } } ] }'
    )
    login = {"user": "fox", "password": "x"}

    async def add(_: Client, stream: Any) -> None:
        await stream.add_stream(name="all", subjects=["fox.>"])

    server.ask(add, **login)
    transport = bench.connect(
        server.url, user="fox", password_file=bench.secret("x"), jetstream=jetstream
    )
    messages = [message(), message(cluster="Bear"), message(b"2")]
    with pytest.raises(
        RetryableError, match="this user may not publish to the subject 'Bear.sample'"
    ) as caught:
        transport.send(messages)
    assert caught.value.delivered == 1
    assert caught.value.is_about_message
    transport.send([messages[0]])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("said", [b"", b"-ERR 'Maximum Payload Violation'\r\n"])
def test_a_connection_that_ends_when_a_message_comes_alone(
    bench: Bench, said: bytes, count: int
) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected)
        for line in server.lines(connected):
            if line == b"PING":
                connected.sendall(b"PONG\r\n")
            if b"poison" in line:
                connected.sendall(said)
                return

    transport = bench.connect(bench.pretend(script).url, jetstream=True)
    with pytest.raises(RetryableError) as caught:
        transport.send([message(b"poison")] * count)
    assert caught.value.delivered == 0
    assert caught.value.is_about_message is (count == 1)


@pytest.mark.parametrize(
    "said", [b"-ERR 'User Authentication Expired'\r\n", b"-ERR 'Stale Connection'\r\n"]
)
def test_a_connection_that_ends_for_reasons_of_its_own(bench: Bench, said: bytes) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected)
        for line in server.lines(connected):
            if line == b"PING":
                connected.sendall(b"PONG\r\n")
            if line.startswith(b"HPUB"):
                connected.sendall(said)
                return

    with pytest.raises(RetryableError) as caught:
        bench.connect(bench.pretend(script).url, jetstream=True).send([message()])
    assert not caught.value.is_about_message


def test_acknowledgements_that_we_may_not_read(bench: Bench) -> None:
    server = bench.serve(
        'authorization { users: [ { user: "fox", password: "x", permissions: '
        '{ publish: ">", subscribe: { deny: "_INBOX.>" } } } ] }'
    )
    keys = {"user": "fox", "password_file": bench.secret("x")}
    bench.connect(server.url, **keys).send([message()])
    with pytest.raises(
        RetryableError, match=f"^{server.url}: this user may not subscribe to _INBOX.>"
    ):
        bench.connect(server.url, jetstream=True, **keys).send([message()])


def test_an_answer_that_comes_from_no_stream_counts_for_nothing(bench: Bench) -> None:
    server = bench.serve()

    async def echo(client: Client, _: JetStreamContext) -> None:
        async def answer(received: Msg) -> None:
            await received.respond(received.data)

        await cast("Any", client).subscribe("fox.sample", cb=answer)
        await client.flush()
        transport = bench.connect(server.url, jetstream=True)
        for body in (b"hello", b"{}"):
            with pytest.raises(RetryableError, match="'fox.sample' is not that of a stream$"):
                await asyncio.to_thread(transport.send, [message(body)])

    server.ask(echo)
