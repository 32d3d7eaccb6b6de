"""One table of jobs in PostgreSQL for several gateways and stores."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.effort import IS_NIGHTLY
from tests.support.metric_store import RunningStore
from tests.support.postgres import PostgresServer
from tests.support.running import until
from tests.support.victoria_metrics import VictoriaMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MINUTE = 60
BEGIN = int(time.time()) // 60 * 60 - 1800


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[VictoriaMetrics]:
    running = VictoriaMetrics(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def gateway(
    directory: Path, engine: VictoriaMetrics, url: str, retention: str = "48h"
) -> RunningStore:
    directory.mkdir()
    config = directory / "store.toml"
    config.write_text(
        f'engine = "victoria-metrics"\nengine-url = "http://{engine.place}"\n'
        f'jobs-database = "{url}"\nretention = "{retention}"\n'
    )
    return RunningStore(directory, "--config", str(config), "--data", "")


def event(function: str, **content: object) -> str:
    text = json.dumps(json.dumps({"cluster": "fox", **content}))
    return f"job,function={function} event={text} {BEGIN}\n"


def start_job(number: int, nodes: tuple[str, ...] = ("n1",), user: str = "eve") -> str:
    resources = [{"hostname": node} for node in nodes]
    return event("start_job", jobId=number, user=user, startTime=BEGIN, resources=resources)


def stop_job(number: int) -> str:
    return event("stop_job", jobId=number, startTime=BEGIN, stopTime=BEGIN + 300)


def stops(store: RunningStore, number: int) -> list[int | None]:
    """Return the ends of a job's runs; none while the table can't be read."""
    answer = store.ask("GET", f"/api/job/?job={number}")
    return [run["stop"] for run in answer.json()] if answer.status == 200 else []


def test_gateways_share_jobs(
    tmp_path: Path, engine: VictoriaMetrics, postgres: PostgresServer
) -> None:
    url = postgres.make_database()
    with (
        gateway(tmp_path / "a", engine, url) as first,
        gateway(tmp_path / "b", engine, url) as second,
    ):
        assert first.write(start_job(7, ("n1", "n2"))).status == 200
        (run,) = second.ask("GET", "/api/job/?job=7").json()
        assert (run["user"], run["nodes"], run["stop"]) == ("eve", ["n1", "n2"], None)
        assert second.write(stop_job(7)).status == 200
        assert stops(first, 7) == [BEGIN + 300]
        # A repeated start, through another gateway, leaves the job ended.
        assert first.write(start_job(7)).status == 200
        assert stops(second, 7) == [BEGIN + 300]
        # A text that PostgreSQL can't store is a bad event, not a failed table.
        assert first.write(start_job(8, user="e\0ve")).status == 200
        assert first.write(start_job(9)).status == 200
        assert (stops(second, 8), stops(second, 9)) == ([], [None])


def test_a_stopped_postgresql_loses_no_event(
    tmp_path: Path, engine: VictoriaMetrics, postgres: PostgresServer
) -> None:
    url = postgres.make_database()
    with (
        gateway(tmp_path / "a", engine, url) as first,
        gateway(tmp_path / "b", engine, url) as second,
    ):
        assert first.write(start_job(1)).status == 200
        assert second.write(start_job(2)).status == 200
        postgres.stop()
        numbers = [*range(10, 31)]
        for number in range(10, 30):
            store = (first, second)[number % 2]
            # Not acknowledged, but kept in memory as well.
            assert store.write(start_job(number)).status == 503
        assert first.write(stop_job(2)).status == 503
        began = time.monotonic()
        assert first.write(f"load,hostname=n1 value=3 {BEGIN}\n").status == 200
        assert first.ask("GET", "/api/job/?job=1").status == 503
        assert time.monotonic() - began < 10
        if IS_NIGHTLY:  # a whole minute, in which events arrive
            for number in itertools.count(31):
                assert first.write(start_job(number)).status == 503
                numbers.append(number)
                if time.monotonic() - began > _MINUTE:
                    break
                time.sleep(0.2)
        # A gateway also starts without the database.
        with gateway(tmp_path / "c", engine, url) as third:
            assert third.write(start_job(30)).status == 503
            postgres.start()
            until(lambda: all(stops(third, number) == [None] for number in numbers))
            until(lambda: stops(third, 2) == [BEGIN + 300])


def test_a_gateway_removes_old_jobs(
    tmp_path: Path, engine: VictoriaMetrics, postgres: PostgresServer
) -> None:
    url = postgres.make_database()
    with gateway(tmp_path / "a", engine, url) as first:
        assert first.write(start_job(7)).status == 200
        assert first.write(start_job(8)).status == 200
        assert first.write(stop_job(8)).status == 200
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE job_runs SET stop = stop - 367 * 86400 WHERE job = '8'")
    with gateway(tmp_path / "b", engine, url, retention="2s") as second:
        until(lambda: stops(second, 8) == [])
        assert stops(second, 7) == [None]


def test_a_store_and_a_gateway_share_jobs(
    tmp_path: Path, engine: VictoriaMetrics, postgres: PostgresServer
) -> None:
    url = postgres.make_database()
    config = tmp_path / "store.toml"
    config.write_text(f'jobs-database = "{url}"\n')
    with (
        gateway(tmp_path / "a", engine, url) as first,
        RunningStore(tmp_path / "b", "--config", str(config)) as second,
    ):
        assert first.write(start_job(7)).status == 200
        assert second.write(f"load,hostname=n1 value=3 {BEGIN + 60}\n").status == 200
        body = {"queries": [{"metric": "load"}]}
        (found,) = second.ask("GET", "/api/query/?job=7", json.dumps(body)).json()["results"]
        assert [one["data"] for one in found] == [[None, 3.0]]
        assert not (tmp_path / "b/data/jobs.sqlite").exists()
