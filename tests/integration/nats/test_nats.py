"""`nats://`: where messages go, and what a closed transport leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from ccagent.records.message import Message
from tests.support.nats_server import Bench, message, numbered, wait_for

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext


@pytest.mark.parametrize(
    ("subject", "sent", "expected"),
    [
        ("", message(), "fox.sample"),
        ("", message(kind="sysinfo", prefix="test"), "test.fox.sysinfo"),
        ("", message(cluster="fox.educloud.no"), "fox.educloud.no.sample"),
        ("", message(b"load value=1\n", "metrics", "line"), "fox.metrics"),
        ("", message(b'job event="x"\n', "events.job", "line"), "fox.events.job"),
        ("", message(b'ccnc log="x"\n', "log.ccnc", "line"), "fox.log.ccnc"),
        ("in.{kind}", message(kind="events.slurm"), "in.events.slurm"),
        ("fox.{node}.{kind}", message(), "fox.c1-1.sample"),
        ("{prefix}.{cluster}.in", message(), "fox.in"),
        ("test.all", message(), "test.all"),
        ("fox.{node}", message(node="a b*c>d\n.{kind}..e"), "fox.a_b_c_d_.{kind}.e"),
    ],
)
@pytest.mark.parametrize("jetstream", [False, True])
def test_where_messages_go(
    bench: Bench, subject: str, sent: Message, expected: str, jetstream: bool
) -> None:
    server = bench.serve()
    server.add_stream("fox.>", "test.>", "in.>")
    bench.connect(server.url, subject=subject, format=sent.format, jetstream=jetstream).send([sent])
    wait_for(lambda: server.count() == 1)
    headers = {"Nats-Msg-Id": sent.id} if jetstream else {}
    assert server.stored() == [(expected, sent.body, headers)]


def test_subscribers_get_messages_in_order(bench: Bench) -> None:
    server = bench.stream_server()
    messages = numbered(500)

    async def listen(client: Client, _: JetStreamContext) -> list[bytes]:
        subscription = await cast("Any", client).subscribe("fox.sample")
        await client.flush()
        await asyncio.to_thread(bench.connect(server.url).send, messages)
        return [(await subscription.next_msg(5)).data for _ in messages]

    assert server.ask(listen) == [m.body for m in messages]


def test_a_stream_holds_messages_in_order_as_they_were_encoded(bench: Bench) -> None:
    server = bench.stream_server()
    messages = [*numbered(1000), message("nœud".encode() * 200_000), message(b"")]
    bench.connect(server.url, jetstream=True).send(messages)
    assert [body for _, body, _ in server.stored()] == [m.body for m in messages]


def test_one_connection_carries_all(bench: Bench) -> None:
    server = bench.stream_server()
    transport = bench.connect(server.url, jetstream=True)
    transport.send(numbered(3))
    before = {t for t in threading.enumerate() if t.name.startswith("nats ")}
    transport.send(numbered(3))
    assert {t for t in threading.enumerate() if t.name.startswith("nats ")} == before
    assert len(before) == 1


def test_nothing_to_send_needs_no_server(bench: Bench) -> None:
    bench.connect("nats://nowhere.invalid").send([])


def test_a_closed_transport_leaves_nothing_and_connects_again(bench: Bench) -> None:
    server = bench.stream_server()
    transport = bench.connect(server.url, jetstream=True)
    gc.collect()  # earlier tests may have left descriptors to the collector
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        transport.send([message()])
        assert threading.active_count() == threads + 1
        transport.close()
        transport.close()
        assert threading.active_count() == threads
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert server.count() == 2


def test_the_library_is_imported_at_the_first_send_and_says_nothing_itself() -> None:
    script = (
        "import sys\n"
        "from ccagent.errors import RetryableError\n"
        "from ccagent.records.message import Message\n"
        "from ccagent.transports.nats import NatsSettings, NatsTransport\n"
        "transport = NatsTransport(NatsSettings(url='nats://127.0.0.1:1'))\n"
        "assert not {'nats', 'nkeys', 'asyncio', 'ssl'} & set(sys.modules)\n"
        "try:\n"
        "    transport.send([Message('fox', 'c1-1', 'sample', 'sonar', 0.0, b'{}')])\n"
        "except RetryableError as error:\n"
        "    print(error)\n"
        "assert 'nats' in sys.modules\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "nats://127.0.0.1:1: connection refused\n"
