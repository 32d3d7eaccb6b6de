"""A simulated day through agent, outbox, HTTP and store: the views have what could be seen."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ccagent.stores.jobstats.queries import find_top
from ccagent.stores.jobstats.query_request import TimeRange, TopRequest
from ccagent.stores.jobstats.schema import TimePartitions, has_timescale
from ccagent.stores.jobstats.sums import sum_up
from tests.support.jobstats_store import RunningJobstatsStore
from tests.support.lustre_agent import QueueingServer
from tests.support.lustre_day import BEGIN, HOUR, STEPS, LustreDay, LustreServer
from tests.support.postgres import PostgresServer

# The day is in 2023.
LONG = '[series]\nretention = "4000d"\npartition = "1d"\n'
TOTALS = "SELECT target, entry_id, operation, sum(delta) FROM deltas GROUP BY 1, 2, 3"
OF_JOBS = "SELECT job, target, operation, total FROM totals WHERE operation = ANY(%s)"
COUNTED = ["read_bytes", "write_bytes", "setattr", "open", "unlink"]


class HarderDay(LustreDay):
    """A day with entries that one reading skips, and a target that nobody has for a while."""

    step = 0
    last = STEPS
    """The last step: what a reading skips must be there in one after it."""

    def observe(self, now: float, *, fails: str = "") -> None:
        self.step += 1
        if self.step == 120:
            self.fail_over("fs-MDT0000", "")
        if 120 <= self.step < 124:
            fails = "fs-MDT0000"
        elif self.step == 124:
            self.host["fs-MDT0000"] = "b"
        target, _ = self.targets["fs-OST0001"]
        skipped: dict[str, Any] = {}
        # One that works on before the next reading looks as if it had begun anew.
        hour = int((now - BEGIN) / HOUR)
        candidates = [
            entry
            for entry in target.entries
            if ("fs-OST0001", entry) not in self.dropped
            and ((int(entry[:4]) - 1000 + hour) % 3 == 0 or int(entry[:4]) < 1000 + hour * 3)
            and self.step % 30 < 28
            and self.step < self.last
        ]
        if candidates and self.chance.random() < 0.2 and fails != "fs-OST0001":
            entry = self.chance.choice(candidates)
            skipped[entry] = target.entries.pop(entry)
        super().observe(now, fails=fails)
        target.entries.update(skipped)


class RepeatingServer(QueueingServer):
    """A server whose sink sends some messages twice, as when an answer is lost."""

    chance = random.Random(5)

    def deliver(self, messages: list[Any]) -> None:
        super().deliver(messages)
        if self.chance.random() < 0.2:
            super().deliver(messages)


class KilledServer(LustreServer):
    """A server with an agent in a process of its own, which is killed now and then."""

    url = ""
    kills = 0
    chance = random.Random(7)

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None
        super().__init__(directory, name)

    def restart(self) -> None:
        self.kill()
        arguments = [str(self.directory), self.name, self.url]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.lustre_agent", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._answer() == "ready\n"

    def sample(self, now: float) -> list[dict[str, Any]]:
        if self.chance.random() < 0.02:
            self._tell(str(now))
            time.sleep(self.chance.uniform(0, 0.03))
            KilledServer.kills += 1
            self.restart()
            now += 1
        self._tell(str(now))
        assert self._answer() == "done\n"
        return []

    def drain(self) -> None:
        self._tell("end")
        assert self._answer() == "done\n"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def _tell(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _answer(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def store(tmp_path: Path, database: str) -> Iterator[RunningJobstatsStore]:
    (tmp_path / "store.toml").write_text(LONG)
    options = ("--config", str(tmp_path / "store.toml"), "--database", database)
    with RunningJobstatsStore(tmp_path / "store", *options) as running:
        yield running


def check_totals(day: LustreDay, database: str) -> None:
    truth = day.truth()
    with psycopg.connect(database) as connection:
        stored = {
            (target, entry, name): int(n) for target, entry, name, n in connection.execute(TOTALS)
        }
        jobs = {
            (job, target, name): int(n)
            for job, target, name, n in connection.execute(OF_JOBS, [COUNTED])
        }
    assert {key: n for key, n in stored.items() if key[2] in COUNTED} == truth
    by_job: dict[tuple[str, str, str], int] = {}
    for (target, entry, name), n in truth.items():
        key = (entry.partition(":")[0], target, name)
        by_job[key] = by_job.get(key, 0) + n
    assert jobs == by_job
    assert len(truth) > 100
    check_sums(by_job, database)


def check_sums(by_job: dict[tuple[str, str, str], int], database: str) -> None:
    """Ask for the whole day, once its quarters of an hour are summed."""
    begins = datetime.fromtimestamp(BEGIN, UTC) - timedelta(hours=1)
    ends = begins + timedelta(hours=30)
    with psycopg.connect(database, autocommit=True) as connection:
        partitions = None if has_timescale(connection) else TimePartitions(86400)
        while sum_up(connection, partitions, ends, timedelta(days=4000)):
            pass
        summed = connection.execute("SELECT count(*) FROM summed_times").fetchone()
        assert summed is not None
        assert summed[0] > 24 * 4
        for target in {target for _, target, _ in by_job}:
            request = TopRequest(
                TimeRange(begins, ends), "job", "open", tuple(COUNTED), 10_000, {"target": target}
            )
            found = {
                (row.key, target, name): n
                for row in find_top(connection, request).rows
                for name, n in row.totals.items()
                if n
            }
            assert found == {key: n for key, n in by_job.items() if key[1] == target and n}


def test_a_day_adds_up(tmp_path: Path, store: RunningJobstatsStore, database: str) -> None:
    RepeatingServer.url = store.url
    day = HarderDay(tmp_path, 3, RepeatingServer)
    for _ in day.live():
        pass
    servers = [server for server in day.servers.values() if isinstance(server, RepeatingServer)]
    for server in servers:
        server.drain()
        server.close()
    check_totals(day, database)
    assert set(day.resets) >= {"start_time", "absent", "decreased"}
    numbers = store.ask("GET", "/status").json()
    assert numbers["repeated"] > STEPS // 4
    assert not numbers["refused_arrays"]


def test_kills_and_an_outage_lose_nothing(
    tmp_path: Path, store: RunningJobstatsStore, database: str, server: PostgresServer
) -> None:
    KilledServer.url = store.url
    day = HarderDay(tmp_path, 4, KilledServer)
    day.last = STEPS - 15
    outage = STEPS * 5 // 6
    chance = random.Random(9)
    killed = 0
    for step in day.live():
        if step == outage:
            server.stop(signal.SIGQUIT)
        if step == outage + 5:
            server.start()
        if not outage <= step < outage + 5 and chance.random() < 0.02:
            killed += 1
            store.kill()
            store.start(is_ready=False)
        if step == day.last:
            break
    servers = [each for each in day.servers.values() if isinstance(each, KilledServer)]
    for each in servers:
        each.drain()
        each.kill()
    check_totals(day, database)
    assert KilledServer.kills > 5
    assert killed > 3
