"""Nothing lost while both the agent and the server are killed with -9, again and again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.support.effort import IS_NIGHTLY
from tests.support.killing import send_while_killed
from tests.support.mqtt_broker import Broker, Subscriber, wait_for
from tests.support.nats_server import Bench

TOTAL, KILLS = (6_000, 12) if IS_NIGHTLY else (3_000, 6)


def test_a_stream_of_nats_holds_each_message_once(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        server = bench.serve()
        server.add_stream("x.org.>")
        starts = 1

        def restart() -> None:
            nonlocal starts
            server.kill()
            server.start()
            starts += 1

        table = {"url": server.url, "jetstream": True, "time-limit": "2s"}
        send_while_killed(tmp_path, table, TOTAL, kills=KILLS, pause=0.0005, meanwhile=restart)

        found = Counter(json.loads(body)["number"] for _, body, _ in server.stored())
        assert found == Counter(range(TOTAL))
        assert starts == KILLS + 1


def test_a_subscriber_of_mqtt_gets_each_message(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    subscriber = Subscriber(broker, "x.org/sample/#", keeps=True)
    broker.save()
    starts = 1

    def restart() -> None:
        nonlocal starts
        broker.kill()
        subscriber.lost()
        broker.start()
        subscriber.wait()
        starts += 1

    table = {"url": broker.url(), "time-limit": "2s"}
    try:
        send_while_killed(tmp_path, table, TOTAL, kills=KILLS, pause=0.0005, meanwhile=restart)
        wait_for(lambda: len({got.payload for got in list(subscriber.got)}) == TOTAL)
    finally:
        subscriber.stop()
        broker.kill()

    found = Counter(json.loads(got.payload)["number"] for got in subscriber.got)
    assert set(found) == set(range(TOTAL))
    assert starts == KILLS + 1
    # Each kill may repeat what was under way, and nothing else.
    repeated = found.total() - TOTAL
    print(f"{repeated} messages came twice")
    assert repeated <= 2 * KILLS * 100
