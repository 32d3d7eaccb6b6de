"""Events of jobs while the table of jobs can't be written: none is lost that was acknowledged."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.store.test_store_nats import publish
from tests.support.metric_store import RunningStore
from tests.support.nats_server import NatsServer
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEGIN = int(time.time()) - 3600


def start_job(number: int) -> bytes:
    content = {
        "jobId": number, "cluster": "fox", "user": "eve", "startTime": BEGIN,
        "resources": [{"hostname": "n1"}],
    }  # fmt: skip
    return f"job,function=start_job event={json.dumps(json.dumps(content))} {BEGIN}\n".encode()


def has_job(store: RunningStore, number: int) -> bool:
    return bool(store.ask("GET", f"/api/job/?job={number}").json())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_jetstream_keeps_events_until_the_table_has_them(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.add_stream("fox.>", name="metrics")

    async def unacknowledged(_: Any, stream: Any) -> int:
        found = await stream.consumer_info("metrics", "ccagent-store")
        return int(found.num_ack_pending + found.num_pending)

    config = tmp_path / "store.toml"
    config.write_text(
        f'[nats]\nurl = "{server.url}"\n[[nats.subscriptions]]\n'
        'cluster = "fox"\nsubject = "fox.jobs"\nstream = "metrics"\n'
    )
    try:
        with RunningStore(tmp_path / "store", "--config", str(config)) as store:
            other = sqlite3.connect(tmp_path / "store/data/jobs.sqlite", isolation_level=None)
            other.execute("begin immediate")
            publish(server, "fox.jobs", [start_job(7)], with_ack=True)
            until(lambda: "events are kept in memory" in store.log.read_text(), 60)
            assert server.ask(unacknowledged) == 1
            store.kill()
            other.close()
            store.start()
            until(lambda: has_job(store, 7), 90)
            until(lambda: server.ask(unacknowledged) == 0, 60)
    finally:
        server.kill()


def test_a_full_disk_loses_no_event(small_disk: Path, tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store", "--data", str(small_disk / "data")) as store:
        assert store.ask("POST", "/api/write/", start_job(1)).status == 200
        filler = (small_disk / "filler").open("wb", buffering=0)
        with filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        number = 1
        while store.ask("POST", "/api/write/", start_job(number := number + 1)).status == 200:
            assert number < 1000
        assert "events are kept in memory" in store.log.read_text()
        (small_disk / "filler").unlink()
        until(lambda: has_job(store, number), 60)
        store.kill()
        store.start()
        assert all(has_job(store, one) for one in range(1, number + 1))
        assert "Traceback" not in store.log.read_text()
