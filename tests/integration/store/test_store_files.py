"""A store takes over the directory of another one, archives what is old, and exports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.metric_store import RunningStore

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = int(time.time()) // 60 * 60 - 3600
HOUR = {"metric": "load", "host": "n1"}


def reference_config(directory: Path, form: str) -> Path:
    """A config.json as the reference's documentation has it."""
    path = directory / "config.json"
    path.write_text(json.dumps({
        "main": {"addr": "127.0.0.1:0", "jwt-public-key": "", "backend-url": ""},
        "metrics": {
            "load": {"frequency": 60, "aggregation": None},
            "power": {"frequency": 60, "aggregation": "sum"},
        },
        "metric-store": {
            "retention-in-memory": "48h", "memory-cap": 8, "num-workers": 2,
            "checkpoint-interval": "1h",
            "checkpoints": {"file-format": form, "directory": str(directory / "checkpoints")},
            "cleanup": {"mode": "delete"},
        },
    }))  # fmt: skip
    return path


def fill(store: RunningStore) -> None:
    for step in range(30):
        when = BEGIN + 60 * step
        store.write(
            f"load,hostname=n1,type=node value={step}.045 {when}\n"
            f"power,hostname=n1,type=socket,type-id=0 value={step} {when}\n"
        )


@pytest.mark.parametrize(("form", "suffix"), [("json", "json"), ("wal", "bin")])
def test_checkpoints_alone_bring_everything_back(form: str, suffix: str, tmp_path: Path) -> None:
    config = str(reference_config(tmp_path, form))
    queries = HOUR, HOUR | {"metric": "power"}
    with RunningStore(tmp_path / "first", "--config", config) as store:
        fill(store)
        before = [one["data"] for (one,) in store.query(BEGIN, BEGIN + 3600, *queries)]
        store.stop()
    (file,) = (tmp_path / "checkpoints/fox/n1").iterdir()
    assert file.suffix == f".{suffix}"
    with RunningStore(tmp_path / "second", "--config", config) as store:
        found = store.query(BEGIN, BEGIN + 3600, *queries)
        assert [one["data"] for (one,) in found] == before


def test_old_values_go_into_the_archive(tmp_path: Path) -> None:
    from ccagent.stores.metrics.archive_writer import main

    with RunningStore(tmp_path / "store") as store:
        fill(store)
        store.stop()
    (segment,) = (tmp_path / "store/data/log").glob("*.log")
    command = [
        sys.executable,
        "-m",
        main.__module__,
        str(segment),
        str(tmp_path / "archive"),
        "1234",
    ]
    subprocess.run(command, check=True, timeout=60)
    parquet: Any = import_module("pyarrow.parquet")
    file = parquet.ParquetFile(tmp_path / "archive/fox/1234.parquet")
    assert file.metadata.num_row_groups == 1
    fields = [(field.name, str(field.type), field.nullable) for field in file.schema_arrow]
    assert fields == [
        ("cluster", "string", False), ("hostname", "string", False), ("metric", "string", False),
        ("scope", "string", False), ("scope_id", "string", False), ("timestamp", "int64", False),
        ("frequency", "int64", False), ("value", "float", False),
    ]  # fmt: skip
    rows = file.read().to_pylist()
    assert len(rows) == 60
    socket = [row for row in rows if row["metric"] == "power"]
    assert socket[3] == {
        "cluster": "fox", "hostname": "n1", "metric": "power", "scope": "socket", "scope_id": "0",
        "timestamp": BEGIN + 180, "frequency": 60, "value": 3.0,
    }  # fmt: skip


def test_values_older_than_the_retention_are_released_and_archived(tmp_path: Path) -> None:
    archive = f'[archive]\ndirectory = "{tmp_path / "archive"}"\n'
    (tmp_path / "store.toml").write_text(archive)
    with RunningStore(tmp_path / "store", "--config", str(tmp_path / "store.toml")) as store:
        fill(store)
        store.stop()
        (tmp_path / "store.toml").write_text(f'retention = "3s"\n{archive}')
        store.start()  # the segment of the first run is complete
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("archive/fox/*.parquet")):
            assert time.monotonic() < deadline, store.log.read_text()
            time.sleep(0.05)
        while list((tmp_path / "store/data/log").glob("*.log")):
            assert time.monotonic() < deadline, store.log.read_text()
            time.sleep(0.1)
        # Memory has let them go; a query reaches into the archive, and finds what is newer too.
        assert store.ask("GET", "/api/debug/").json() == {"data": {}}
        now = int(time.time())
        store.write(f"load,hostname=n1,type=node value=7 {now}\n")
        power = {"metric": "power", "host": "n1"}
        load, sockets = store.query(BEGIN, now + 60, HOUR, power)
        values = [round(step + 0.045, 3) for step in range(30)]
        assert load[0]["data"][:30] == values
        assert load[0]["data"][-1] == 7
        assert sockets[0]["data"] == list(range(30))
        table = {"cluster": "fox", "from": BEGIN, "to": now + 60, "metrics": ["load", "power"]}
        answer = store.ask("POST", "/api/query?version=2", json.dumps(table)).json()["series"]
        assert [(one["metric"], one["count"]) for one in answer] == [("load", 31), ("power", 30)]
        answer = store.ask("POST", "/api/query?version=2", json.dumps(table | {"from": now - 10}))
        assert [one["count"] for one in answer.json()["series"]] == [1]


def export(tmp_path: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "ccagent", "store", "metrics", "export", *arguments, "--data",
               str(tmp_path / "store/data")]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_an_export_in_lines_can_be_written_again(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        before = store.query(BEGIN, BEGIN + 3600, HOUR, HOUR | {"metric": "power"})
        store.stop()
    assert export(tmp_path, str(tmp_path / "lines")) == "exported: 60 values\n"
    with RunningStore(tmp_path / "again") as store:
        assert store.write((tmp_path / "lines").read_text()).status == 200
        assert store.query(BEGIN, BEGIN + 3600, HOUR, HOUR | {"metric": "power"}) == before


def test_an_export_in_checkpoints(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        store.stop()
    export(tmp_path, "--format", "binary", str(tmp_path / "files"))
    assert len(list((tmp_path / "files/fox/n1").glob("*.bin"))) == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "store", "metrics", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_status_and_check(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        options = ["--data", str(tmp_path / "store/data"), "--listen", f"127.0.0.1:{store.port}"]
        found = run("status", *options)
        assert (found.returncode, "points_total" in found.stdout) == (0, True)
    assert run("status", *options).returncode == 1
    assert run("check", "--config", str(tmp_path / "none")).returncode == 2
    found = run("check", "--config", str(reference_config(tmp_path, "wal")))
    assert (found.returncode, found.stdout) == (
        0, "metrics: load, power\nlistens on 127.0.0.1:0, keeps 172800s in memory\n",
    )  # fmt: skip
