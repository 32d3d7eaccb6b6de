"""Receivers that are away, for an hour or for good."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from ccagent.config.configuration import check
from ccagent.daemon.daemon import Daemon
from ccagent.machine.own_memory import read_resident
from ccagent.queue import sender
from tests.support.effort import IS_NIGHTLY
from tests.support.fast_clock import MIDNIGHT, FastClock, moments
from tests.support.http_server import Request, Server
from tests.support.ports import free_port
from tests.support.running import Running, until

HOUR = 3600 if IS_NIGHTLY else 600
"""The queue takes several batches in a part of it already."""


class Arrivals(list[Request]):
    """Keeps of each request when it came, and which moment it is about; not its body."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[str] = []
        self.came: list[float] = []

    def append(self, request: Request) -> None:
        self.times.append(json.loads(request.body)["data"]["attributes"]["time"])
        self.came.append(time.time())


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.requests = Arrivals()
    yield made
    made.stop()


@pytest.mark.usefixtures("utc")
def test_an_hour_of_outage_at_a_sample_a_second_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.2)  # the hour passes in seconds
    port = free_port()
    table = {
        "cluster": "x",
        "outbox": {"directory": str(tmp_path / "spool")},
        "agents": {"sample": {"every": "1s", "exclude-system-jobs": True}},
        "sinks": {
            "backend": {"url": f"http://127.0.0.1:{port}"},
            "tree": {"url": f"dir:{tmp_path}/tree"},
        },
    }
    clock = FastClock(MIDNIGHT + 0.5)
    daemon = Daemon(lambda: check(table, "test"), clock)
    clock.until = HOUR
    memory: list[int] = []
    arrivals = Arrivals()

    def come_back() -> None:
        memory.append(read_resident() // 1024)
        server = Server(port=port)
        server.requests = arrivals
        try:
            until(lambda: daemon.is_idle, 300)
            memory.append(read_resident() // 1024)
        finally:
            server.stop()
            daemon.stop()

    def watch() -> bool:
        if len(memory) < 2 and clock.steady - 5000.0 > 60 * (len(memory) + 1):
            memory.append(read_resident() // 1024)
        return not daemon.is_sampling

    clock.is_idle, clock.end = watch, come_back
    daemon.run()

    expected = [MIDNIGHT + n for n in range(1, HOUR + 1)]
    (tree,) = (tmp_path / "tree").rglob("*.json")
    sampled = [
        json.loads(text)["data"]["attributes"]["time"] for text in tree.read_text().splitlines()
    ]
    # A busy machine may miss the first or the last second.
    assert HOUR - 2 <= len(sampled) <= HOUR
    begin = expected.index(moments(sampled)[0])
    assert moments(sampled) == expected[begin : begin + len(sampled)]
    assert arrivals.times == sampled
    print(f"memory in KB, before, during and after the outage: {memory}")
    assert max(memory) - memory[0] < 10 * 1024


def test_a_sink_that_never_answers_makes_no_other_late(
    server: Server, daemon: Running, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        daemon.start(
            f"""
            [outbox]
            directory = "{tmp_path}/spool"
            [agents.sample]
            every = "1s"
            exclude-system-jobs = true
            [sinks.silent]
            url = "http://127.0.0.1:{silent.getsockname()[1]}/"
            time-limit = "30s"
            [sinks.up]
            url = "http://{server.place}/"
            """
        )
        arrivals = server.requests
        assert isinstance(arrivals, Arrivals)
        until(lambda: len(arrivals.came) >= 8)
        daemon.stop()
    sampled = [datetime.fromisoformat(text).timestamp() for text in arrivals.times]
    assert {later - earlier for earlier, later in pairwise(sampled)} <= {1.0, 2.0, 3.0}
    late = [came - moment for came, moment in zip(arrivals.came, sampled, strict=True)]
    print(f"seconds from tick to arrival: {[round(seconds, 3) for seconds in late]}")
    assert max(late) < 10  # the other waits for 30 s
