"""Lines over NATS: core subscriptions, queue groups, and JetStream across kills of both sides."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.net import nats_thread
from ccagent.net.nats_session import NatsSession
from ccagent.stores.metrics import nats_receiver
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.nats_receiver import NatsReceiver
from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings
from ccagent.stores.metrics.store import MetricStore
from tests.support.certificates import Authority
from tests.support.metric_store import RunningStore
from tests.support.nats_server import NatsServer, connect
from tests.support.ports import free_port
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN = int(time.time()) // 60 * 60 - 20 * 3600
METRICS = 20


def message(node: int, step: int) -> bytes:
    return "".join(
        f"m{n},hostname=n{node},type=node value={100 * step + n} {BEGIN + 60 * step}\n"
        for n in range(METRICS)
    ).encode()


def publish(
    server: NatsServer, subject: str, bodies: list[bytes], *, with_ack: bool = False
) -> None:
    async def send(client: Any, stream: Any) -> None:
        for body in bodies:
            if with_ack:
                await stream.publish(subject, body)
            else:
                await client.publish(subject, body)
        await client.flush()

    server.ask(send)


def values(store: RunningStore, node: int, metric: int = 3) -> list[float | None]:
    ((*found,),) = store.query(BEGIN, BEGIN + 86400, {"metric": f"m{metric}", "host": f"n{node}"})
    return found[0].get("data", []) if found else []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    running = NatsServer(tmp_path / "nats")
    try:
        yield running
    finally:
        running.kill()


def start(directory: Path, server: NatsServer, name: str, *subscriptions: str) -> RunningStore:
    path = directory / f"{name}.toml"
    tables = "".join(f'[[nats.subscriptions]]\ncluster = "fox"\n{one}\n' for one in subscriptions)
    path.write_text(f'[nats]\nurl = "{server.url}"\n{tables}')
    store = RunningStore(directory / name, "--config", str(path))
    until(lambda: "connected" in store.log.read_text(), 60)
    return store


def test_core_subscriptions_with_wildcards(tmp_path: Path, server: NatsServer) -> None:
    with start(tmp_path, server, "a", 'subject = "fox.>"', 'subject = "other"') as store:
        publish(server, "fox.metrics", [message(1, step) for step in range(30)])
        publish(server, "other", [b"bad line\n" + message(2, 0)])
        until(lambda: len(values(store, 1)) == 30 and values(store, 2) == [3.0], 60)
        assert "1 bad lines; line 1" in store.log.read_text()


def test_a_lost_server_is_connected_again(tmp_path: Path, server: NatsServer) -> None:
    with start(tmp_path, server, "a", 'subject = "fox"') as store:
        server.kill()
        until(lambda: "connection refused; retrying in" in store.log.read_text(), 60)
        server.start()
        until(lambda: store.log.read_text().count("connected") == 2, 60)
        publish(server, "fox", [message(1, 0)])
        until(lambda: values(store, 1) == [3.0], 60)


def test_a_login_over_tls_at_the_server_that_runs(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certify("node")
    login = 'authorization { user: eve, password: "a b\'c" }\n'
    files = f'cert_file: "{certificate}", key_file: "{key}"'
    server = NatsServer(tmp_path / "nats", f"{login}tls {{ {files} }}\n", "tls")
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    secret.chmod(0o600)
    path = tmp_path / "store.toml"
    path.write_text(
        f'[nats]\nurl = "tls://127.0.0.1:{free_port()}, {server.url}"\nuser = "eve"\n'
        f'password-file = "{secret}"\nca-file = "{authority.certificate}"\n'
        '[[nats.subscriptions]]\nsubject = "fox"\ncluster = "fox"\n'
    )
    try:
        with RunningStore(tmp_path / "a", "--config", str(path)) as store:
            until(lambda: "the login is refused" in store.log.read_text(), 60)
            assert "connection refused" in store.log.read_text()
            secret.write_text("a b'c")  # read again at each attempt
            until(lambda: f"{server.url}: connected" in store.log.read_text(), 60)
    finally:
        server.kill()


@pytest.mark.parametrize(
    "damaged",
    [
        b"PUB fox \xff 2\r\nab\r\n",
        b"HPUB fox 4 6\r\n\r\n\r\nab\r\n",
        b"PUB fox 2000000\r\n" + bytes(2_000_000) + b"\r\n",
    ],
    ids=["reply", "headers", "large"],
)
def test_a_damaged_message_loses_no_other(tmp_path: Path, damaged: bytes) -> None:
    server = NatsServer(tmp_path / "nats", "max_payload: 8MB", with_jetstream=False)
    try:
        with start(tmp_path, server, "a", 'subject = "fox"') as store:
            with socket.create_connection(("127.0.0.1", server.port)) as sender:
                sender.sendall(b'CONNECT {"headers":true,"verbose":false}\r\n')
                sender.sendall(damaged + b"PING\r\n")
                answers = b""
                while b"PONG" not in answers:
                    answers += sender.recv(4096)
            assert b"-ERR" not in answers
            publish(server, "fox", [message(1, 0)])
            until(lambda: values(store, 1) == [3.0], 15)
            assert store.log.read_text().count("is skipped") == 1
    finally:
        server.kill()


def test_a_queue_group_shares_messages(tmp_path: Path, server: NatsServer) -> None:
    one = 'subject = "fox"\nqueue = "stores"'
    with start(tmp_path, server, "a", one) as first, start(tmp_path, server, "b", one) as second:
        publish(server, "fox", [message(node, 0) for node in range(100)])

        def counts() -> list[int]:
            return [sum(bool(values(store, n)) for n in range(100)) for store in (first, second)]

        until(lambda: sum(counts()) == 100, 60)
        assert min(counts()) > 0


def test_jetstream_loses_nothing_while_the_store_is_killed(
    tmp_path: Path, server: NatsServer
) -> None:
    server.add_stream("fox.>", name="metrics")
    one = 'subject = "fox.metrics"\nstream = "metrics"'
    with start(tmp_path, server, "a", one) as store:
        step = 0
        for _ in range(3):
            publish(
                server, "fox.metrics", [message(1, step + n) for n in range(100)], with_ack=True
            )
            step += 100
            until(lambda: len(values(store, 1)) > step - 90, 60)  # noqa: B023 - called at once
            store.kill()
            publish(
                server, "fox.metrics", [message(1, step + n) for n in range(100)], with_ack=True
            )
            step += 100
            store.start()
        until(lambda: len(values(store, 1)) == step, 60)
        assert values(store, 1) == [100.0 * n + 3 for n in range(step)]

        async def pending(_: Any, stream: Any) -> int:
            found = await stream.consumer_info("metrics", "ccagent-store")
            return int(found.num_ack_pending + found.num_pending)

        until(lambda: server.ask(pending) == 0, 60)


def test_jetstream_in_order_and_many(tmp_path: Path, server: NatsServer) -> None:
    server.add_stream("fox.>", name="metrics")

    async def send(client: Any) -> None:
        for step in range(100):
            for node in range(30):
                await client.publish("fox.metrics", message(node, step))
        await client.flush()

    async def publish_many() -> None:
        client = await connect(server.url)
        await send(client)
        await client.close()

    asyncio.run(publish_many())
    with start(tmp_path, server, "a", 'subject = "fox.metrics"\nstream = "metrics"') as store:
        until(lambda: all(len(values(store, node)) == 100 for node in range(30)), 60)


def test_a_deleted_consumer_is_made_again(tmp_path: Path, server: NatsServer) -> None:
    server.add_stream("fox.>", name="metrics")

    async def delete(_: Any, stream: Any) -> None:
        await stream.delete_consumer("metrics", "ccagent-store")

    with start(tmp_path, server, "a", 'subject = "fox.metrics"\nstream = "metrics"') as store:
        publish(server, "fox.metrics", [message(1, 0)], with_ack=True)
        until(lambda: values(store, 1) == [3.0], 30)
        server.ask(delete)
        publish(server, "fox.metrics", [message(1, 1)], with_ack=True)
        until(lambda: values(store, 1) == [3.0, 103.0], 60)
        assert (
            store.log.read_text().count("consumer ccagent-store: it no longer exists; retrying")
            == 1
        )


def test_a_missing_stream_is_named_and_tried_again(tmp_path: Path, server: NatsServer) -> None:
    path = tmp_path / "store.toml"
    path.write_text(
        f'[nats]\nurl = "{server.url}"\n'
        '[[nats.subscriptions]]\nsubject = "fox"\ncluster = "fox"\nstream = "metrics"\n'
    )
    with RunningStore(tmp_path / "a", "--config", str(path)) as store:
        until(lambda: "stream not found" in store.log.read_text(), 60)
        server.add_stream("fox", name="metrics")
        publish(server, "fox", [message(1, 0)], with_ack=True)
        until(lambda: values(store, 1) == [3.0], 60)


@pytest.mark.parametrize("fault", ["frozen", "silent"])
def test_a_connection_that_ended_without_a_word_is_noticed(
    fault: str,
    server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sessions: list[NatsSession] = []

    def make(*arguments: Any) -> NatsSession:
        sessions.append(NatsSession(*arguments))
        return sessions[-1]

    monkeypatch.setattr(nats_thread, "NatsSession", make)
    monkeypatch.setattr(nats_receiver, "_CHECK_EVERY", 0.1)
    monkeypatch.setattr(nats_receiver, "_ANSWER_WITHIN", 1)
    store = MetricStore(MetricCatalogue({"load": StoredMetric(60, "avg")}), time.time)
    subscription = SubscriptionSettings(subject="fox", cluster="fox")
    settings = StoreNatsSettings(url=server.url, subscriptions=[subscription])

    async def run() -> None:
        receiver = NatsReceiver(settings, LineIngest(store), GroupCommit(None, "write"))
        task = asyncio.create_task(receiver.run())
        await wait_for(lambda: receiver.is_connected)
        if fault == "frozen":
            server.freeze()
        else:
            sessions[0].client._closed_cb = None
            await sessions[0].client.close()
        await wait_for(lambda: "retrying in 1 s" in caplog.text)
        server.thaw()
        await wait_for(lambda: len(sessions) > 1 and receiver.is_connected)
        task.cancel()

    asyncio.run(run())


async def wait_for(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - somebody else makes it true
            await asyncio.sleep(0.01)
