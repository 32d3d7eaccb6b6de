"""The store on TimescaleDB: compressed chunks, late rows, policies, answers as without it."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from ccagent.config.duration import Duration
from ccagent.stores.jobstats.housekeeping import keep_house
from ccagent.stores.jobstats.schema import apply_policies, lock_compressed_chunks
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings, SeriesTableSettings
from tests.integration.jobstats.test_jobstats_day import (
    LONG,
    HarderDay,
    RepeatingServer,
    check_totals,
)
from tests.support.effort import IS_NIGHTLY
from tests.support.jobstats_store import RunningJobstatsStore, record
from tests.support.postgres import PostgresServer
from tests.support.running import until

pytestmark = pytest.mark.timescale

NOW = datetime.now(UTC).replace(microsecond=0)
FASTEST = """
SELECT (alter_job(
    job_id, scheduled => false, config => config || '{"compress_after": "0 days"}'
)).job_id
FROM timescaledb_information.jobs WHERE hypertable_name IN ('ost', 'mdt')
"""
"""The day is long ago: each run compresses the chunks that rows are stored into."""
SCHEDULED = """
SELECT (alter_job(
    job_id, schedule_interval => '1 second', retry_period => '1 second', scheduled => %s,
    config => config || '{"compress_after": "0 seconds"}'
)).job_id
FROM timescaledb_information.jobs WHERE proc_name = 'policy_compression'
"""
RUNS = """
SELECT coalesce(sum(total_successes + total_failures), 0)::int
FROM timescaledb_information.job_stats
WHERE hypertable_name IN ('ost', 'mdt', 'ost_sums', 'mdt_sums')
"""
FAILURES = "SELECT err_message FROM timescaledb_information.job_errors WHERE job_id >= 1000"
INGEST_SECONDS = 3600.0 if IS_NIGHTLY else 20.0
POLICY = (
    "SELECT job_id, schedule_interval, config ->> 'compress_after' "
    "FROM timescaledb_information.jobs WHERE hypertable_name = 'ost'"
)
FILL = """
INSERT INTO ost (time_series_id, timestamp, since, server, snapshot_time, write_bytes,
    write_bytes_delta)
SELECT md5('s' || n % %(series)s)::uuid, %(at)s + n / %(series)s * INTERVAL '2 minutes',
    %(at)s + (n / %(series)s - 1) * INTERVAL '2 minutes', 'oss' || n % 8,
    %(at)s, n * 4096, 4096
FROM generate_series(0, %(rows)s - 1) AS n
"""


class Compression(threading.Thread):
    """Runs the compression policies, by default without a pause."""

    def __init__(self, database: str, jobs: list[int], pause: float = 0) -> None:
        super().__init__()
        self.database, self.jobs, self.pause = database, jobs, pause
        self.stopping = threading.Event()
        self.runs = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            while not self.stopping.wait(self.pause):
                for job in self.jobs:
                    try:
                        connection.execute(f"CALL run_job({job})".encode())
                    except psycopg.Error as error:
                        self.problems.append(str(error))
                    self.runs += 1


class ScheduledSender(threading.Thread):
    """Posts the records of a server each second. A tenth is late, by up to five minutes."""

    def __init__(self, store: RunningJobstatsStore, number: int) -> None:
        super().__init__()
        self.store, self.server = store, f"s{number}"
        self.chance = random.Random(number)
        self.stopping = threading.Event()
        self.counters: dict[tuple[str, str], int] = {}
        self.late: list[tuple[float, dict[str, Any]]] = []
        self.late_count = 0
        self.answers: set[int] = set()

    def run(self) -> None:
        while not self.stopping.wait(1):
            self.observe(time.time())
        self.answers.add(self.store.post([each for _, each in self.late]).status)

    def observe(self, now: float) -> None:
        moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        array: list[dict[str, Any]] = []
        for n in range(30):
            kind, operation = ("MDT", "open") if n % 3 == 0 else ("OST", "write_bytes")
            key = f"fs-{kind}000{n % 3}", f"{n}:7:{self.server}"
            before = self.counters.get(key)
            self.counters[key] = 0 if before is None else before + self.chance.randrange(2**40)
            one = record(
                0, {operation: self.counters[key]}, target=key[0], entry_id=key[1],
                timestamp=moment, server=self.server, snapshot_time=now,
            )  # fmt: skip
            if before is not None and self.chance.random() < 0.1:
                self.late.append((now + self.chance.expovariate(1 / 60) % 300, one))
            else:
                array.append(one)
        due = [one for when, one in self.late if when <= now]
        self.late_count += len(due)
        self.late = [(when, one) for when, one in self.late if when > now]
        self.answers.add(self.store.post([*array, *due]).status)


@pytest.fixture
def service(timescale_database: str) -> Iterator[JobstatsService]:
    one = JobstatsService(JobstatsStoreSettings(database=timescale_database), timescale_database)
    one.prepare()
    yield one
    one.close()


@pytest.fixture
def connection(
    service: JobstatsService, timescale_database: str
) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(timescale_database, autocommit=True) as made:
        yield made


def at(days: float, entry: str = "5:1001:c1", **fields: Any) -> dict[str, Any]:
    moment = NOW - timedelta(days=days)
    return record(0, entry_id=entry, timestamp=moment.isoformat(), snapshot_time=None, **fields)


def store(service: JobstatsService, *records: dict[str, Any]) -> int:
    return service.store_array(json.dumps(records).encode()).stored


def fill(connection: psycopg.Connection[Any], rows: int, days: float, series: int) -> None:
    """Insert rows of one chunk."""
    moment = (NOW - timedelta(days=days)).replace(hour=1)
    statement = FILL.replace("%(series)s", str(series)).replace("% ", "%% ")
    connection.execute(statement.encode(), {"at": moment, "rows": rows})


def compress(connection: psycopg.Connection[Any], table: str = "ost") -> None:
    connection.execute(f"SELECT compress_chunk(c, true) FROM show_chunks('{table}') c".encode())


def test_more_compressed_rows_than_the_limit(
    service: JobstatsService, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 120_000, 8, series=10_000)
    compress(connection)
    assert store(service, at(0, write_bytes=5)) == 1
    assert store(service, at(8, write_bytes=1)) == 1
    assert connection.execute("SELECT total FROM totals WHERE job = '5'").fetchall() == [(4,)]


def test_late_rows_correct_compressed_ones(
    service: JobstatsService, connection: psycopg.Connection[Any]
) -> None:
    array = [at(days / 8, "5:1:c1", write_bytes=1000 - days * 10) for days in range(40)]
    late = array.pop(20)
    assert store(service, *array) == 39
    compress(connection)
    assert store(service, late) == 1
    assert connection.execute("SELECT total FROM totals").fetchall() == [(390,)]
    deltas = connection.execute("SELECT write_bytes_delta, count(*) FROM ost GROUP BY 1 ORDER BY 1")
    assert deltas.fetchall() == [(0, 1), (10, 39)]
    settings = SeriesTableSettings(retention=Duration("1d"))
    assert keep_house(connection, settings, None, NOW) > 0


def test_storing_locks_no_other_chunk(
    service: JobstatsService, connection: psycopg.Connection[Any], timescale_database: str
) -> None:
    """A compression holds such a lock, and deadlocked with storing."""
    store(service, at(3, write_bytes=1), at(0.01, write_bytes=2))
    with psycopg.connect(timescale_database) as other:
        found = other.execute("SELECT min(c::text) FROM show_chunks('ost') c").fetchone()
        assert found is not None
        other.execute(f"LOCK TABLE {found[0]} IN ACCESS EXCLUSIVE MODE".encode())
        storing = threading.Thread(target=store, args=(service, at(0, write_bytes=7)))
        storing.start()
        storing.join(20)
        is_done = not storing.is_alive()
    storing.join()
    assert is_done


def test_one_transaction_at_a_time_stores_into_older_chunks(
    service: JobstatsService, connection: psycopg.Connection[Any], timescale_database: str
) -> None:
    """Compressed batches have rows of all servers: two such transactions deadlocked."""
    with psycopg.connect(timescale_database) as other:
        lock_compressed_chunks(other)
        storing = threading.Thread(target=store, args=(service, at(3, write_bytes=1)))
        storing.start()
        moment = datetime.now(UTC).isoformat()
        current = record(0, entry_id="6:1:c1", timestamp=moment, server="b", snapshot_time=None)
        assert store(service, current) == 1
        assert connection.execute("SELECT count(*) FROM ost").fetchone() == (1,)
    storing.join()
    assert connection.execute("SELECT count(*) FROM ost").fetchone() == (2,)


def test_what_an_administrator_has_set_stays(
    service: JobstatsService, connection: psycopg.Connection[Any]
) -> None:
    ((job, _, age),) = connection.execute(POLICY).fetchall()
    assert age == "168:00:00"
    connection.execute("SELECT alter_job(%s, schedule_interval => INTERVAL '5 hours')", [job])
    connection.execute(
        'SELECT alter_job(%s, config => config || \'{"compress_after": "3 days"}\') '
        "FROM timescaledb_information.jobs WHERE job_id = %s",
        [job, job],
    )
    apply_policies(connection, SeriesTableSettings())
    assert connection.execute(POLICY).fetchall() == [(job, timedelta(hours=5), "3 days")]
    apply_policies(connection, SeriesTableSettings(compress_after=Duration("2d")))
    assert connection.execute(POLICY).fetchall() == [(job, timedelta(hours=5), "172800 seconds")]
    connection.execute("SELECT remove_compression_policy('ost')")
    apply_policies(connection, SeriesTableSettings(compress_after=Duration("2d")))
    assert connection.execute(POLICY).fetchall() == []


def test_a_day_adds_up_while_chunks_are_compressed(tmp_path: Path, timescale_database: str) -> None:
    (tmp_path / "store.toml").write_text(LONG)
    options = ("--config", str(tmp_path / "store.toml"), "--database", timescale_database)
    with (
        RunningJobstatsStore(tmp_path / "store", *options) as running,
        psycopg.connect(timescale_database, autocommit=True) as connection,
    ):
        jobs = [row[0] for row in connection.execute(FASTEST).fetchall()]
        compressing = Compression(timescale_database, jobs)
        compressing.start()
        RepeatingServer.url = running.url
        day = HarderDay(tmp_path, 3, RepeatingServer)
        for _ in day.live():
            pass
        for server in day.servers.values():
            assert isinstance(server, RepeatingServer)
            server.drain()
            server.close()
        numbers = running.ask("GET", "/status").json()
        assert (numbers["unavailable"], numbers["refused_records"]) == (0, 0)
        compressing.stopping.set()
        compressing.join()
        assert compressing.problems == []
        assert compressing.runs > 10
        assert "deadlock" not in running.said()
    check_totals(day, timescale_database)


def ask_all(store: RunningJobstatsStore) -> list[bytes]:
    """Return the bodies of ten answers. The rows of an export have no order."""
    begins, ends = NOW - timedelta(days=3), NOW - timedelta(minutes=13)
    times = f"from={begins:%Y-%m-%dT%H:%M:%S}&to={ends:%Y-%m-%dT%H:%M:%S}"
    moment = f"at={ends - timedelta(hours=5):%Y-%m-%dT%H:%M:%S}&window=1h"
    answers = [
        store.ask("GET", path)
        for path in (
            f"/top?{times}",
            f"/top?{times}&by=user&sort=open&columns=open,write_bytes",
            f"/top?{times}&by=target&sort=prealloc&columns=prealloc,read_bytes",
            f"/top?{times}&by=node&job=7",
            f"/live?{moment}",
            f"/live?{moment}&sort=metadata&user=1",
            f"/job/7?{times}",
            f"/job/8?{times}&step=15m",
            f"/job/nobody?{times}",
            f"/export?{times}",
        )
    ]
    assert [one.status for one in answers] == [200] * 8 + [404, 200]
    *bodies, export = [one.body for one in answers]
    assert len(export.splitlines()) > 100
    return [*bodies, b"\n".join(sorted(export.splitlines()))]


def test_answers_are_those_of_plain_postgresql(
    tmp_path: Path, database: str, timescale_database: str
) -> None:
    (tmp_path / "namespaces").touch(mode=0o600)
    (tmp_path / "namespaces").write_text(f"%j:%u:%H {UUID(int=5)}\n")
    (tmp_path / "c.toml").write_text(f'namespaces-file = "{tmp_path}/namespaces"\n')
    chance = random.Random(11)
    rows: list[dict[str, Any]] = []
    for job in (7, 8, 9):
        for target in ("fs-OST0000", "fs-OST0001", "fs-MDT0000"):
            counters = dict.fromkeys(("write_bytes", "read_bytes", "open", "prealloc"), 0)
            for step in range(72 * 4):
                counters = {name: n + chance.randrange(2**40) for name, n in counters.items()}
                if chance.random() < 0.02:
                    counters = {name: n // 3 for name, n in counters.items()}
                rows.append(at(3 - step / 96, f"{job}:1:c{job}", target=target, **counters))
    late = [rows.pop(chance.randrange(len(rows))) for _ in range(200)]
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(
                RunningJobstatsStore(
                    tmp_path / name, "--config", str(tmp_path / "c.toml"), "--database", url
                )
            )
            for name, url in (("plain", database), ("timescale", timescale_database))
        ]
        connection = stack.enter_context(psycopg.connect(timescale_database, autocommit=True))
        for array in (rows, late):
            assert [store.post(array).json()["stored"] for store in stores] == [len(array)] * 2
            for is_compressed in (False, True):
                if is_compressed:
                    for table in ("ost", "mdt", "ost_sums", "mdt_sums"):
                        compress(connection, table)
                plain, timescale = map(ask_all, stores)
                assert timescale == plain


def count_runs(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute(RUNS).fetchone()
    assert found is not None
    count: int = found[0]
    return count


def test_ingest_beside_the_policies_own_scheduler(
    tmp_path: Path, timescale_database: str, timescale_server: PostgresServer
) -> None:
    """Each second, chunks of a minute: late rows meet chunks that are being compressed."""
    (tmp_path / "store.toml").write_text('[series]\npartition = "1m"\nretention = "2d"\n')
    options = ("--config", str(tmp_path / "store.toml"), "--database", timescale_database)
    with (
        RunningJobstatsStore(tmp_path / "store", *options) as running,
        psycopg.connect(timescale_database, autocommit=True) as connection,
    ):
        jobs = [row[0] for row in connection.execute(SCHEDULED, [True]).fetchall()]
        compressing = Compression(timescale_database, jobs, pause=1)
        until(lambda: count_runs(connection) > 0)
        failed = connection.execute(FAILURES).fetchall()
        if failed:
            # PostgreSQL 15.20 refuses what TimescaleDB 2.27 does in its workers: each job fails.
            assert {"portal" in text for (text,) in failed} == {True}
            connection.execute(SCHEDULED, [False])
            compressing.start()
        senders = [ScheduledSender(running, number) for number in range(2)]
        for each in senders:
            each.start()
        faulthandler.dump_traceback_later(INGEST_SECONDS + 300, exit=True)
        ends = time.monotonic() + INGEST_SECONDS
        while time.monotonic() < ends:
            assert running.ask("GET", "/live").status == 200
            time.sleep(1)
        for each in senders:
            each.stopping.set()
        for each in senders:
            each.join()
        assert {status for each in senders for status in each.answers} == {200}
        assert sum(each.late_count for each in senders) > INGEST_SECONDS / 4
        if failed:
            compressing.stopping.set()
            compressing.join()
            runs, problems = compressing.runs, compressing.problems
        else:
            failed = connection.execute(FAILURES).fetchall()
            runs, problems = count_runs(connection), [str(text) for (text,) in failed]
        assert runs > INGEST_SECONDS / 2
        # A policy gives up a chunk into which a late row has just been stored.
        assert all("columnstore policy failure" in one for one in problems), problems
        assert len(problems) < runs / 20
        assert running.ask("GET", "/status").json()["unavailable"] == 0
        assert "deadlock" not in running.said() + timescale_server.log()
        totals = connection.execute("SELECT target, entry_id, sum(delta) FROM deltas GROUP BY 1, 2")
        assert {row[:2]: row[2] for row in totals} == {
            key: value for each in senders for key, value in each.counters.items()
        }
