"""Sums of quarters of an hour change no answer, whatever comes late."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from ccagent.stores.jobstats.housekeeping import keep_house
from ccagent.stores.jobstats.queries import find_top
from ccagent.stores.jobstats.query_request import TimeRange, TopRequest
from ccagent.stores.jobstats.schema import TimePartitions, has_timescale, list_partitions
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings
from ccagent.stores.jobstats.sums import sum_up
from tests.support.jobstats_store import record
from tests.support.running import until

NOW = datetime.now(UTC).replace(minute=52, second=0, microsecond=0) - timedelta(hours=1)
RETENTION = timedelta(days=90)
OPERATIONS = ("write_bytes", "open", "punch", "migrate")


EITHER_ENGINE = pytest.mark.parametrize(
    "database", ["plain", pytest.param("timescale", marks=pytest.mark.timescale)], indirect=True
)


@pytest.fixture
def database(request: pytest.FixtureRequest, database: str) -> str:
    """A plain PostgreSQL, or the engine of EITHER_ENGINE."""
    if getattr(request, "param", "plain") == "plain":
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("TRUNCATE summed_times")
        return database
    url: str = request.getfixturevalue("timescale_database")
    return url


@pytest.fixture
def service(database: str) -> Iterator[JobstatsService]:
    one = JobstatsService(JobstatsStoreSettings(database=database), database)
    one.prepare()
    yield one
    one.close()


def observe(minutes: float, job: int, value: int, target: str) -> dict[str, Any]:
    moment = NOW - timedelta(minutes=minutes)
    return record(
        0, entry_id=f"{job}:1:c1", timestamp=moment.isoformat(), target=target, snapshot_time=None,
        write_bytes=value, open=value * 2, migrate=value // 3, punch=value * 2**40,
    )  # fmt: skip


def sum_quarters(database: str, now: datetime = NOW) -> int:
    with psycopg.connect(database, autocommit=True) as connection:
        partitions = None if has_timescale(connection) else TimePartitions(86400)
        return sum_up(connection, partitions, now, RETENTION, monotonic=lambda: 0.0)


def plain_sums(database: str, begins: datetime, ends: datetime) -> dict[str, dict[str, int]]:
    query = (
        "SELECT job, operation, sum(delta) FROM deltas "
        "WHERE timestamp > %s AND timestamp <= %s GROUP BY 1, 2"
    )
    found: dict[str, dict[str, int]] = {}
    with psycopg.connect(database) as connection:
        for job, operation, total in connection.execute(query, [begins, ends]):
            found.setdefault(job, {})[operation] = int(total)
    return found


def top(service: JobstatsService, begins: datetime, ends: datetime) -> dict[str, dict[str, int]]:
    request = TopRequest(TimeRange(begins, ends), "job", "write_bytes", OPERATIONS, 100, {})
    return {
        row.key: {name: n for name, n in row.totals.items() if n}
        for row in service.ask(find_top, request).rows
        if any(row.totals.values())
    }


@EITHER_ENGINE
def test_answers_are_those_of_the_observations(service: JobstatsService, database: str) -> None:
    chance = random.Random(3)
    waiting = [
        observe(minutes, job, (400 - minutes) * job % 977, f"fs-{kind}0000")
        for minutes in range(0, 300, 5)
        for job in (7, 8, 9)
        for kind in ("OST", "MDT")
    ]
    chance.shuffle(waiting)
    while waiting:
        array, waiting = waiting[:60], waiting[60:]
        service.store_array(json.dumps(array).encode())
        for _ in range(5):
            ends = NOW - timedelta(minutes=chance.choice([0, 7, 22, 97]))
            begins = ends - timedelta(minutes=chance.choice([3, 15, 60, 240]))
            assert top(service, begins, ends) == plain_sums(database, begins, ends)
        sum_quarters(database)
    assert sum_quarters(database) == 0
    everything = plain_sums(database, NOW - timedelta(days=1), NOW)
    assert len(everything) == 3
    with psycopg.connect(database, autocommit=True) as connection:
        # An answer over a day comes from the sums alone, but for its ends.
        connection.execute("UPDATE ost SET punch_delta = 0 WHERE timestamp < %s", [NOW])
    summed = top(service, NOW - timedelta(days=1), NOW)
    assert {job: n["migrate"] for job, n in summed.items()} == {
        job: n["migrate"] for job, n in everything.items()
    }
    assert all(n["punch"] > 0.9 * everything[job]["punch"] for job, n in summed.items())


@EITHER_ENGINE
def test_hours_and_days_are_read_from_their_sums(service: JobstatsService, database: str) -> None:
    hours = range(0, 24 * 5, 3)
    rows = [
        observe(60 * hour, job, (1000 - hour) * job, f"fs-{kind}0000")
        for hour in hours
        for job in (7, 8)
        for kind in ("OST", "MDT")
    ]
    late = [rows.pop(len(rows) // 2) for _ in range(3)]
    begins = NOW - timedelta(days=4, hours=5, minutes=20)
    for array in (rows, late):
        service.store_array(json.dumps(array).encode())
        for ends in (NOW, NOW - timedelta(days=1, minutes=7), NOW - timedelta(days=3)):
            assert top(service, begins, ends) == plain_sums(database, begins, ends)
        while sum_quarters(database):
            pass
        for ends in (NOW, NOW - timedelta(days=1, minutes=7), NOW - timedelta(days=3)):
            assert top(service, begins, ends) == plain_sums(database, begins, ends)
    everything = plain_sums(database, begins, NOW)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE ost_sums SET punch_delta = 0")
        # There are observations once in three hours: none in the quarters beside whole hours.
        assert top(service, begins, NOW) == everything
        connection.execute("UPDATE ost_hours SET punch_delta = 0")
    summed = top(service, begins, NOW)
    for job, sums in everything.items():
        assert 0.5 * sums["punch"] < summed[job]["punch"] < sums["punch"]
        assert summed[job]["migrate"] == sums["migrate"]


@EITHER_ENGINE
def test_an_old_quarter_with_a_late_row_is_summed_again(
    service: JobstatsService, database: str
) -> None:
    """But old quarters that never had sums are not: those of a new store's database."""
    days = 10 * 1440
    older, *array = (observe(days + n, 7, 1000 - n, "fs-OST0000") for n in (14 * 1440, 40, 20, 0))
    late = observe(days + 30, 7, 970, "fs-OST0000")
    service.store_array(json.dumps([older, *array]).encode())
    sum_quarters(database, NOW - timedelta(days=9))
    with psycopg.connect(database, autocommit=True) as connection:
        if has_timescale(connection):
            connection.execute("SELECT compress_chunk(c) FROM show_chunks('ost_sums') c")
        query = "SELECT count(*), min(timestamp) FROM summed_times"
        before = connection.execute(query).fetchone()
        assert service.store_array(json.dumps([late]).encode()).stored == 1
        assert connection.execute(query).fetchone() != before
        assert before is not None
        assert sum_quarters(database, NOW - timedelta(days=1)) > 1
        found = connection.execute(
            "SELECT count(*), min(timestamp) FROM summed_times WHERE timestamp <= %s",
            [NOW - timedelta(days=9)],
        )
        assert found.fetchone() == before
    ends = NOW - timedelta(days=9)
    begins = ends - timedelta(days=2)
    assert top(service, begins, ends) == plain_sums(database, begins, ends)


@EITHER_ENGINE
def test_a_quarter_waits_for_arrays_in_hand(service: JobstatsService, database: str) -> None:
    service.store_array(json.dumps([observe(50, 7, 5, "fs-OST0000")]).encode())
    with psycopg.connect(database) as blocker:
        # The array below has begun, and waits for this lock.
        blocker.execute("LOCK TABLE metadata IN EXCLUSIVE MODE")
        array = json.dumps([observe(40, 8, 5, "fs-OST0000"), observe(38, 8, 9, "fs-OST0000")])
        storing = threading.Thread(target=service.store_array, args=(array.encode(),))
        storing.start()
        with psycopg.connect(database, autocommit=True) as watcher:

            def is_waiting(condition: LiteralString) -> bool:
                query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND " + condition
                return watcher.execute(query).fetchone() == (1,)

            until(lambda: is_waiting("relation = 'metadata'::regclass"))
            summing = threading.Thread(target=sum_quarters, args=(database,))
            summing.start()
            until(lambda: is_waiting("locktype = 'advisory'"))
    storing.join()
    summing.join()
    assert top(service, NOW - timedelta(hours=2), NOW) == {
        "8": {"write_bytes": 4, "open": 8, "migrate": 2, "punch": 4 << 40}
    }


def test_the_retention_takes_no_part_of_a_sum(service: JobstatsService, database: str) -> None:
    arrays = [observe(minutes, 7, 400 - minutes, "fs-OST0000") for minutes in range(0, 300, 5)]
    service.store_array(json.dumps(arrays).encode())
    sum_quarters(database)
    with psycopg.connect(database, autocommit=True) as connection:
        later = NOW + RETENTION - timedelta(minutes=100)
        keep_house(connection, service.settings.series, TimePartitions(86400), later)
        left = connection.execute("SELECT min(timestamp) FROM summed_times").fetchone()
        assert left is not None
        assert left[0] >= NOW - timedelta(minutes=100 - 15)
        assert list_partitions(connection, "ost_sums")[0][1] <= NOW
    begins = NOW - timedelta(hours=6)
    assert top(service, begins, NOW) == plain_sums(database, begins, NOW)


def test_a_partition_is_made_while_a_query_runs(database: str) -> None:
    with psycopg.connect(database) as reader, psycopg.connect(database) as writer:
        reader.execute("SELECT * FROM ost, mdt, ost_sums")
        writer.execute("SET lock_timeout = '2s'")
        TimePartitions(86400).ensure(writer, [NOW])
        assert len(list_partitions(writer, "ost")) == 1
