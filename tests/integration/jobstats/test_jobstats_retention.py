"""Partitions are made when they are needed and dropped when they are old."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from ccagent.config.duration import Duration
from ccagent.stores.database import DatabaseAwayError
from ccagent.stores.jobstats import series
from ccagent.stores.jobstats.housekeeping import keep_house
from ccagent.stores.jobstats.schema import TimePartitions, list_partitions, migrate
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings, SeriesTableSettings
from tests.support.jobstats_store import record


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def at(days: float, entry: str, **fields: Any) -> dict[str, Any]:
    """Return a record of so many days ago."""
    moment = now() - timedelta(days=days)
    return record(0, entry_id=entry, timestamp=moment.isoformat(), snapshot_time=None, **fields)


def count(database: str, table: str) -> int:
    with psycopg.connect(database) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert found is not None
    return int(found[0])


def test_old_partitions_go_with_their_series(database: str) -> None:
    settings = JobstatsStoreSettings(
        database=database, series=SeriesTableSettings(retention=Duration("10d"))
    )
    service = JobstatsService(settings, database)
    service.prepare()
    array = [at(days, f"{days}:1:c1") for days in (9, 8, 5, 0)] + [at(0, "8:1:c1"), at(20, "9:1:x")]
    stored = service.store_array(json.dumps(array).encode())
    assert (stored.stored, stored.expired) == (5, 1)
    for days in (20, 8, 0):
        moment = (now() - timedelta(days=days)).timestamp()
        tags = "hostname=a,stype=filesystem,stype-id=fs-OST0000"
        point = f"lustre_ost_exports,{tags} value=7 {moment:.0f}"
        service.store_states(point.encode())
    assert count(database, "target_state") == 2
    # A row of metadata counts as new for as long as the retention.
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE metadata SET first_seen = first_seen - INTERVAL '9 days'")
        parts = list_partitions(connection, "ost")
        assert len(parts) == 6
        later = now() + timedelta(days=3)
        dropped = keep_house(connection, settings.series, TimePartitions(86400), later)
        assert dropped == 8
        left = list_partitions(connection, "ost")
        assert left[0][1] > now() - timedelta(days=7)
        assert left[-1][2] > later + timedelta(days=2)
        entries = connection.execute("SELECT entry_id FROM metadata ORDER BY 1").fetchall()
    assert entries == [("0:1:c1",), ("5:1:c1",), ("8:1:c1",)]
    assert count(database, "target_state") == 1
    assert count(database, "ost") == 3
    service.close()


def test_a_removed_series_is_written_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = SeriesTableSettings(retention=Duration("1h"), partition=Duration("1h"))
    service = JobstatsService(JobstatsStoreSettings(database=database, series=hour), database)
    service.prepare()
    assert service.store_array(json.dumps([at(0, "7:1:c1")]).encode()).stored == 1
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM metadata")  # as the retention does after an hour
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3601)
    monkeypatch.setattr(series, "time", later)
    service.store_array(json.dumps([at(-1 / 86400, "7:1:c1")]).encode())
    assert count(database, "metadata") == 1
    service.close()


def test_another_length_of_partitions_fills_the_gaps(database: str) -> None:
    hours = SeriesTableSettings(partition=Duration("6h"))
    service = JobstatsService(JobstatsStoreSettings(database=database), database)
    service.prepare()
    service.close()
    service = JobstatsService(JobstatsStoreSettings(database=database, series=hours), database)
    service.prepare()
    array = [at(days / 8, f"{days}:1:c1") for days in range(40)]
    assert service.store_array(json.dumps(array).encode()).stored == 40
    with psycopg.connect(database) as connection:
        parts = list_partitions(connection, "ost")
    assert all(one[2] <= other[1] for one, other in pairwise(parts))
    assert {end - start for _, start, end in parts} >= {timedelta(hours=6), timedelta(days=1)}
    service.close()


def test_a_newer_schema_is_left_alone(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO migrations (number, name) VALUES (99, 'future')")
        with pytest.raises(
            Exception, match=r"its schema has version 99, this ccagent supports \d+"
        ):
            migrate(connection, SeriesTableSettings())


def test_a_database_that_is_gone_is_worked_on_later(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = JobstatsService(JobstatsStoreSettings(database=database), database)
    service.prepare()

    def connect_alone() -> None:
        raise DatabaseAwayError("database x: gone")

    monkeypatch.setattr(service.database, "connect_alone", connect_alone)
    service.keep_house()
    service.sum_up()
    service.close()
    assert [text for text in caplog.messages if "gone" in text] == [
        "retention: database x: gone; retrying later", "sums: database x: gone; retrying later"
    ]  # fmt: skip
