"""Agent and store together: an hour without the store leaves no gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.config.configuration import check
from ccagent.daemon.daemon import Daemon
from ccagent.queue import sender
from tests.support.fast_clock import MIDNIGHT, FastClock
from tests.support.metric_store import RunningStore
from tests.support.ports import free_port
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HOUR, EVERY = 3600, 10


def test_an_hour_without_the_store_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.2)  # the hour passes in seconds
    port = free_port()
    table = {
        "cluster": "fox",
        "outbox": {"directory": str(tmp_path / "spool")},
        "agents": {"metrics": {"every": f"{EVERY}s"}},
        "sinks": {"store": {"url": f"http://127.0.0.1:{port}/api/write/", "format": "line"}},
    }
    clock = FastClock(MIDNIGHT + 0.5)
    daemon = Daemon(lambda: check(table, "test"), clock)
    clock.until = HOUR
    answers: list[Any] = []

    # The hour is a recorded one, of years ago.
    (tmp_path / "store.toml").write_text('retention = "10000d"\n')
    options = "--config", str(tmp_path / "store.toml"), "--frequency", f"{EVERY}s"

    def come_back() -> None:
        try:
            with RunningStore(tmp_path / "store", *options, port=port) as store:
                until(lambda: daemon.is_idle, 300)
                begin = int(MIDNIGHT)
                (host,) = store.ask("GET", "/api/debug/").json()["data"]["fox"]
                query = {"metric": "cpu_load", "host": host}
                answers.extend(store.query(begin, begin + HOUR, query))
        finally:
            daemon.stop()

    clock.is_idle, clock.end = lambda: not daemon.is_sampling, come_back
    daemon.run()
    ((one,),) = answers
    values = [value for value in one["data"] if value is not None]
    assert len(values) >= HOUR // EVERY - 2
    assert None not in one["data"][one["data"].index(values[0]) :]
