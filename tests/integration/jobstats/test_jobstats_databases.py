"""Databases that are not as they should be, and questions to them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.database import DatabaseAwayError, Migration, MigrationSet
from ccagent.stores.jobstats.schema import MIGRATIONS, TimePartitions, migrate
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings, SeriesTableSettings
from tests.support.jobstats_store import RunningJobstatsStore, record
from tests.support.postgres import PostgresServer
from tests.support.running import until

NOW = datetime.now(UTC).isoformat()
ENTRY = {"timestamp": NOW, "snapshot_time": None, "entry_id": "5:1:\u65e5\u672c"}


def ccagent(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_names_are_utf8_whatever_the_role_is_set_to(server: PostgresServer, tmp_path: Path) -> None:
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'".encode())
    with RunningJobstatsStore(tmp_path / "store", "--database", url) as store:
        assert store.post([record(0, **ENTRY)]).status == 200
        assert store.ask("GET", "/top").json()["rows"][0]["key"] == ENTRY["entry_id"]


@pytest.mark.parametrize(("configured", "used"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_on_disk_whatever_the_role_is_set_to(
    server: PostgresServer, configured: str, used: str
) -> None:
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {configured}".encode())
    service = JobstatsService(JobstatsStoreSettings(database=url), url)
    service.prepare()
    with service.database.connection() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == (used,)
    service.close()


def test_a_database_that_only_reads_is_waited_for(server: PostgresServer) -> None:
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    service = JobstatsService(JobstatsStoreSettings(database=url), url)
    with pytest.raises(DatabaseAwayError, match="read-only"):
        service.prepare()


def test_a_store_ends_while_another_one_migrates(server: PostgresServer, tmp_path: Path) -> None:
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [0x6A6F6273746174])
        with RunningJobstatsStore(tmp_path / "store", "--database", url, is_ready=False) as store:
            query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
            until(lambda: other.execute(query).fetchone() == (1,), 30)
            assert store.stop() == 0


def test_two_stores_migrate_at_once(server: PostgresServer, tmp_path: Path) -> None:
    url = server.make_database()
    with (
        RunningJobstatsStore(tmp_path / "a", "--database", url, is_ready=False) as one,
        RunningJobstatsStore(tmp_path / "b", "--database", url) as other,
    ):
        until(lambda: one.ask("GET", "/status").json()["ready"] == 1, 60)
        assert other.post([record(0, **ENTRY)]).json()["stored"] == 1


@pytest.mark.parametrize("command", [["top"], ["export", "x.csv"]])
def test_a_database_without_tables_is_explained(
    server: PostgresServer, tmp_path: Path, command: list[str]
) -> None:
    words = [str(tmp_path / word) if word.endswith(".csv") else word for word in command]
    done = ccagent("jobstats", *words, "--database", server.make_database())
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "create or update the tables with `ccagent store jobstats migrate`" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_utf8_are_unknown(store: RunningJobstatsStore) -> None:
    done = ccagent("jobstats", "job", b"\xff", "--url", store.url)
    assert (done.returncode, done.stderr) == (1, "no such job: '\\udcff'\n")
    done = ccagent("jobstats", "top", "--where", b"user=\xff", "--url", store.url)
    assert done.returncode == 0, done.stderr


def test_an_old_postgresql_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccagent.stores.database._OLDEST", 990_000)
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(ConfigurationError, match="is too old: 99"),
    ):
        migrate(connection, SeriesTableSettings())


def test_last_observations_of_an_older_schema_count(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, series = server.make_database(), str(UUID(int=7))
    older = [one for one in MIGRATIONS.list_all() if one.number < 14]

    def list_older(_: MigrationSet) -> list[Migration]:
        return older

    now = datetime.now(UTC)
    seen = now - timedelta(minutes=2)
    with psycopg.connect(url, autocommit=True) as connection:
        with monkeypatch.context() as patched:
            patched.setattr(MigrationSet, "list_all", list_older)
            migrate(connection, SeriesTableSettings())
        connection.execute(
            "INSERT INTO ost_last VALUES (%s, 'oss1', ROW(%s, %s, NULL, 0.5, '{\"migrate\": 3}', "
            "9223372036854775813, 0, 2, 0, 0, 0, 0, 0, 0, 0)::ost_observation)",
            [series, seen, seen],
        )
        service = JobstatsService(JobstatsStoreSettings(database=url), url)
        service.prepare()
        one = record(
            0, {"write_bytes": 4, "read_bytes": 2**63 + 6, "read": 2, "migrate": 10},
            time_series_id=series, server="oss1", clock_step=0.5,
            timestamp=now.isoformat(), snapshot_time=now.timestamp(),
        )  # fmt: skip
        assert service.store_array(json.dumps([one]).encode()).stored == 1
        service.close()
        found = connection.execute("SELECT operation, total FROM totals ORDER BY 1").fetchall()
        assert found == [("migrate", 7), ("read_bytes", 1), ("write_bytes", 4)]


def test_partitions_have_no_statistics_of_counters(database: str) -> None:
    """Each computation took 0.6 s of CPU, and no query needs them."""
    with psycopg.connect(database, autocommit=True) as connection:
        TimePartitions(3600).ensure(connection, [datetime(2026, 1, 1, tzinfo=UTC)])
        found = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'ost_20260101_0000'::regclass "
            "AND attnum > 0 AND attstattarget IS DISTINCT FROM 0 ORDER BY 1"
        ).fetchall()
    assert [name for (name,) in found] == ["server", "since", "time_series_id", "timestamp"]


def test_an_administrator_may_want_statistics_of_all_columns(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        columns = connection.execute(
            "SELECT string_agg(format('ALTER %I SET STATISTICS 100', attname), ', ') "
            "FROM pg_attribute WHERE attrelid = 'ost'::regclass AND attnum > 0 AND NOT attisdropped"
        ).fetchone()
        assert columns is not None
        connection.execute(f"ALTER TABLE ost {columns[0]}".encode())
        TimePartitions(3600).ensure(connection, [datetime(2026, 1, 1, tzinfo=UTC)])
        found = connection.execute("SELECT to_regclass('ost_20260101_0000')::text").fetchone()
    assert found == ("ost_20260101_0000",)
