"""Clocks that are set, senders that contradict each other, arrays with bad records."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings
from tests.support.jobstats_store import BEGIN, RunningJobstatsStore, record, zeros

START = {"start_time": BEGIN.timestamp() - 7200}
HOUR = 3600


def total(database: str) -> int:
    statement = "SELECT coalesce(sum(delta), 0) FROM deltas WHERE operation = 'write_bytes'"
    with psycopg.connect(database) as connection:
        found = connection.execute(statement).fetchone()
    assert found is not None
    return int(found[0])


@pytest.fixture
def service(database: str) -> Iterator[JobstatsService]:
    one = JobstatsService(JobstatsStoreSettings(database=database), database)
    one.prepare()
    yield one
    one.close()


def post(service: JobstatsService, *records: dict[str, Any]) -> Any:
    return service.store_array(json.dumps(records).encode())


BACK = [(0, 5000), (120, 5100), (240 - HOUR, 5200), (360 - HOUR, 5300)]
AHEAD = [(0, 7200), (120 + HOUR, 7300), (240 + HOUR, 7400), (360, 7500), (480, 7600)]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("readings", "truth"), [(BACK, 300), (AHEAD, 400)])
def test_a_step_of_the_clock_counts_once(
    service: JobstatsService,
    database: str,
    readings: list[tuple[int, int]],
    truth: int,
    size: int,
) -> None:
    records = [record(at, {"write_bytes": value}, **START) for at, value in readings]
    for array in _batches(records, size):
        post(service, *array)
    assert total(database) == truth
    post(service, *records)
    assert total(database) == truth


def _batches(records: list[Any], size: int) -> list[list[Any]]:
    return [records[at : at + size] for at in range(0, len(records), size)]


def test_any_order_after_a_step_adds_up(service: JobstatsService, database: str) -> None:
    for number, order in enumerate(itertools.permutations(BACK)):
        for at, value in order:
            post(service, record(at, {"write_bytes": value}, entry_id=f"{number}:1:c1", **START))
        assert total(database) == 300 * (number + 1), order


def test_a_marked_step_needs_no_start_time(service: JobstatsService, database: str) -> None:
    post(service, zeros(-60), record(0, {"write_bytes": 5000}), record(120, {"write_bytes": 5100}))
    step = {"clock_step": -HOUR}
    post(service, record(240 - HOUR, {"write_bytes": 5200}, **step))
    post(service, record(360 - HOUR, {"write_bytes": 5300}, **step))
    assert total(database) == 5300


def test_a_sender_attributes_nothing_to_another_user(
    service: JobstatsService, database: str
) -> None:
    target = {"target": "scratch-OST0009", "entry_id": "77:2000:n9"}
    post(service, zeros(0, **target, server="oss1", user="victim", user_id=666, job_id=1))
    post(service, zeros(0, **target, server="oss2", user="bob"))
    post(service, record(120, {"write_bytes": 2**40}, **target, server="oss2", user="bob"))
    with psycopg.connect(database) as connection:
        found = connection.execute('SELECT job, user_id, "user", nodename FROM metadata').fetchall()
    assert found == [("77", 2000, "bob", "n9")]
    assert service.numbers()["contradicted"] > 0


def test_names_that_senders_disagree_about_are_ids(service: JobstatsService, database: str) -> None:
    for server, user in (("oss1", "victim"), ("oss2", "bob"), ("oss1", "victim")):
        post(service, zeros(0, server=server, user=user))
    with psycopg.connect(database) as connection:
        assert connection.execute('SELECT "user" FROM metadata').fetchall() == [("1001",)]
    assert service.numbers()["contradicted"] >= 1


def test_one_bad_record_refuses_no_other(store: RunningJobstatsStore) -> None:
    good = [record(at, {"write_bytes": at}) for at in range(0, 1200, 120)]
    bad = [
        record(1, cluster="alpha"), record(2, write_bytes=None), record(3, entry_id=7), [5], "x",
        record(4, time_series_id="no"),
    ]  # fmt: skip
    answer = store.post([*bad, *good])
    assert answer.status == 200
    found = answer.json()
    assert (found["records"], found["stored"]) == (16, 10)
    assert [one["number"] for one in found["refused"]] == [1, 2, 3, 4, 5, 6]
    assert all(one["reason"] for one in found["refused"])
    refused = store.post(bad)
    assert refused.status == 400
    assert len(refused.json()["records"]) == 6


def test_upper_case_ids_and_numeric_texts_are_read(
    store: RunningJobstatsStore, database: str
) -> None:
    series = "AF854063-C381-585F-B551-CE0B6C4440A3"
    sent = record(0, write_bytes="12", user_id="1001", snapshot_time="1700000000.5")
    answer = store.ask("POST", "/", json.dumps([sent | {"time_series_id": series}]))
    assert (answer.status, answer.json()["stored"]) == (200, 1)
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT time_series_id::text, write_bytes FROM ost").fetchall()
    assert found == [(series.lower(), 12)]


def test_a_token_may_name_its_targets(tmp_path: Path, database: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("sender oss1 0123456789abcdef0 fs-OST0000,fs-OST1*\n")
    options = ("--database", database, "--config", str(tmp_path / "c.toml"))
    (tmp_path / "c.toml").write_text(f'token-file = "{tokens}"\n')
    with RunningJobstatsStore(tmp_path / "store", *options) as store:
        own = [record(0, server="oss1"), record(0, server="oss1", target="fs-OST1a00")]
        other = record(0, server="oss1", target="fs-OST0009")
        answer = store.post([*own, other], "0123456789abcdef0")
        assert (answer.status, answer.json()["stored"]) == (200, 2)
        assert answer.json()["refused"][0]["reason"].endswith("none of the token's targets")
        assert store.post([other], "0123456789abcdef0").status == 403
        for target, status in (("fs-OST0000", 200), ("fs-OST0009", 403)):
            point = f"lustre_ost_exports,hostname=oss1,stype=filesystem,stype-id={target} value=7"
            headers = {"Authorization": "Bearer 0123456789abcdef0"}
            assert store.ask("POST", "/write", point, headers).status == status


def test_a_client_written_from_the_seed_alone(tmp_path: Path, database: str) -> None:
    """It posts the seed's arrays to the URL without a path, and reads the seed's tables."""
    (tmp_path / "namespaces").touch(mode=0o600)
    (tmp_path / "namespaces").write_text("%j:%u:%H 2e79b8a1-c4fc-45ba-9023-d16fdce6e3fe\n")
    (tmp_path / "c.toml").write_text(
        f'namespaces-file = "{tmp_path}/namespaces"\n[series]\nretention = "4000d"\n'
    )
    options = ("--database", database, "--config", str(tmp_path / "c.toml"))
    client = Path(__file__).parents[2] / "support" / "seed_client.py"
    assert len(client.read_text().splitlines()) <= 40
    with RunningJobstatsStore(tmp_path / "store", *options) as store:
        ended = subprocess.run(
            [sys.executable, client, store.url, database],
            capture_output=True,
            check=True,
            text=True,
        )
    of_series = [
        "af854063-c381-585f-b551-ce0b6c4440a3", "scratch-OST0001", "11317854:17627127:r01c01",
        11317854, 17627127, "r01c01", None,
    ]  # fmt: skip
    assert json.loads(ended.stdout) == [
        [*of_series, "2022-11-21 06:00:00+00", None, 0, 0],
        [*of_series, "2022-11-21 06:02:00+00", 1669010520, 7754, 4284],
    ]
