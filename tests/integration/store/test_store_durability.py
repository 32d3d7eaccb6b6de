"""What was acknowledged survives kill -9, and what a store took over is what it had."""

from __future__ import annotations

import http.client
import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.effort import IS_NIGHTLY
from tests.support.metric_store import RunningStore
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NODES, METRICS, KILLS = (8, 40, 5) if IS_NIGHTLY else (4, 20, 3)
BEGIN = int(time.time()) // 60 * 60 - 90 * 3600


def message(node: int, step: int) -> bytes:
    return "".join(
        f"m{n},cluster=fox,hostname=n{node},type=node value={1000 * step + n} {BEGIN + 60 * step}\n"
        for n in range(METRICS)
    ).encode()


def configured(directory: Path, text: str = "") -> tuple[str, str]:
    """Return options of a store whose retention is longer than all steps that are sent."""
    path = directory / "store.toml"
    path.write_text(f'retention = "100h"\n{text}')
    return "--config", str(path)


class Client(threading.Thread):
    """Sends step after step of a node; a step that was not acknowledged is sent again."""

    def __init__(self, port: Callable[[], int], node: int, is_done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.is_broken = False
        self._port, self._node, self._is_done = port, node, is_done

    def run(self) -> None:
        while not self._is_done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=60)
            try:
                while not self._is_done.is_set():
                    connection.request("POST", "/api/write", message(self._node, self.acknowledged))
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status == 200:
                        self.acknowledged += 1
                    else:
                        self.is_broken = True
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)
            finally:
                connection.close()


def have_progressed(clients: list[Client], before: list[int]) -> bool:
    return all(one.acknowledged > n + 5 for one, n in zip(clients, before, strict=True))


@pytest.mark.parametrize("sync", ["write", "disk"])
def test_what_was_acknowledged_survives_kills(sync: str, tmp_path: Path) -> None:
    is_done = threading.Event()
    with RunningStore(tmp_path / "store", *configured(tmp_path, f'sync = "{sync}"\n')) as store:
        clients = [Client(lambda: store.port, node, is_done) for node in range(NODES)]
        for client in clients:
            client.start()
        for _ in range(KILLS):
            before = [client.acknowledged for client in clients]
            until(partial(have_progressed, clients, before), 60)
            store.kill()
            store.start()
        is_done.set()
        for client in clients:
            client.join(60)
        store.kill()
        store.start()
        for node, client in enumerate(clients):
            assert not client.is_broken
            queries = [{"metric": f"m{n}", "host": f"n{node}"} for n in range(METRICS)]
            end = BEGIN + 60 * client.acknowledged
            for number, (one,) in enumerate(store.query(BEGIN, end, *queries)):
                assert one["data"] == [1000.0 * s + number for s in range(client.acknowledged)]


def ask(store: RunningStore) -> Any:
    return store.query(BEGIN, BEGIN + 90 * 3600, {"metric": "m1", "host": "n1"})


def test_a_stop_keeps_everything(tmp_path: Path) -> None:
    with RunningStore(tmp_path, *configured(tmp_path)) as store:
        for step in range(20):
            store.write(message(1, step).decode())
        before = ask(store)
        store.stop()
        store.start()
        assert ask(store) == before
        assert len(before[0][0]["data"]) == 20


def test_a_damaged_log_costs_what_is_damaged(tmp_path: Path) -> None:
    with RunningStore(tmp_path, *configured(tmp_path)) as store:
        for step in range(20):
            store.write(message(1, step).decode())
        store.kill()
        (segment,) = (tmp_path / "data/log").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(data)
        store.start()
        values = ask(store)[0][0]["data"]
        assert (len(values), values.count(None)) == (20, 1)
        assert "are damaged; reading the rest" in store.log.read_text()


def test_two_stores_can_not_share_a_directory(tmp_path: Path) -> None:
    import subprocess
    import sys

    with RunningStore(tmp_path):
        options = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
        command = [sys.executable, "-m", "ccagent", "store", "metrics", *options]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert found.returncode != 0
        assert "holds" in found.stderr


def test_a_restart_keeps_the_digits(tmp_path: Path) -> None:
    with RunningStore(tmp_path, *configured(tmp_path)) as store:
        store.write(f"m1,cluster=fox,hostname=n1 value=0.0451234 {BEGIN}\n")
        store.stop()
        store.start()
        query = {"metric": "m1", "host": "n1", "scale-by": 10000}
        ((one,),) = store.query(BEGIN, BEGIN + 60, query)
        assert json.dumps(one["data"]) == "[451.234]"
