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
from tests.support.running import until

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
    program = f"from {main.__module__} import main; main()"
    command = [sys.executable, "-c", program, str(segment), str(tmp_path / "archive"), "1234"]
    # A store that is killed before it deletes the segment writes it again.
    for _ in range(2):
        subprocess.run(command, check=True, timeout=60)
        assert [one.name for one in (tmp_path / "archive/fox").iterdir()] == ["1234.parquet"]
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


def test_mounts_of_a_job_stay_apart_in_log_and_archive(tmp_path: Path) -> None:
    wanted = [("7", "/home,fstype=nfs4"), ("7", "/a b,fstype=fuse"), ("8", "/home,fstype=nfs4")]
    query = {"metric": "job_fs_read", "host": "n1", "type": "job", "subtype": "mountpoint"}
    queries = [query | {"type-ids": [job], "subtype-ids": [one]} for job, one in wanted]
    tags = ",type=node,stype=job,stype-id="
    with RunningStore(tmp_path / "store") as store:
        for number, (job, one) in enumerate(wanted):
            mount = one.replace(" ", "\\ ")
            body = f"job_fs_read,hostname=n1{tags}{job},mountpoint={mount} value={number} {BEGIN}\n"
            assert store.write(body).status == 200
        store.stop()
    expected = [[{"data": [float(number)]}] for number in range(3)]

    def data(store: RunningStore, begin: int) -> list[list[dict[str, Any]]]:
        found = store.query(begin, BEGIN + 60, *queries)
        return [[{"data": [v for v in o["data"] if v is not None]} for o in each] for each in found]

    with RunningStore(tmp_path / "store") as store:
        assert data(store, BEGIN) == expected
        store.stop()
    (segment,) = [
        one for one in (tmp_path / "store/data/log").glob("*.log") if one.stat().st_size > 99
    ]
    program = "from ccagent.stores.metrics.archive_writer import main; main()"
    command = [sys.executable, "-c", program, str(segment), str(tmp_path / "archive"), str(BEGIN)]
    subprocess.run(command, check=True, timeout=60)
    text = f'[archive]\ndirectory = "{tmp_path / "archive"}"\n'
    (tmp_path / "store.toml").write_text(text)
    with RunningStore(tmp_path / "other", "--config", str(tmp_path / "store.toml")) as store:
        assert data(store, BEGIN - 3 * 86400) == expected


def test_a_query_that_is_too_large_does_not_read_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "archive/fox"
    archive.mkdir(parents=True)
    (archive / f"{BEGIN}.parquet").write_text("damaged")
    (archive / f"{BEGIN + 1}.parquet").symlink_to("/etc/passwd")
    text = f'[limits]\nvalues = 1000\n[archive]\ndirectory = "{archive.parent}"\n'
    (tmp_path / "store.toml").write_text(text)
    with RunningStore(tmp_path / "store", "--config", str(tmp_path / "store.toml")) as store:
        fill(store)
        old = BEGIN - 10 * 86400
        body = {"cluster": "fox", "from": old, "to": BEGIN + 60, "queries": [HOUR]}
        answer = store.ask("GET", "/api/query/", json.dumps(body))
        assert (answer.status, b"exceed 1000 values" in answer.body) == (400, True)
        assert "archive" not in store.log.read_text()
        # Files that can't be read are named, and cost themselves.
        queries = [HOUR | {"resolution": 0}]
        body |= {"from": BEGIN - 49 * 3600, "to": BEGIN - 45 * 3600, "queries": queries}
        assert store.ask("GET", "/api/query/", json.dumps(body)).json() == {"results": [[]]}
        assert store.log.read_text().count("its values are missing") == 2


def test_a_table_as_a_stream_of_arrow(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        body = {"cluster": "fox", "from": BEGIN, "to": BEGIN + 180, "metrics": ["load", "power"]}

        def table(**more: Any) -> Any:
            text = json.dumps(body | {"format": "arrow"} | more)
            answer = store.ask("POST", "/api/query?version=2", text)
            assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
            arrow: Any = import_module("pyarrow")
            return arrow.ipc.open_stream(answer.body).read_all()

        found = table()
        assert found.column_names == ["time", "metric", "host", "value"]
        assert str(found.schema.field("time").type) == "timestamp[s, tz=UTC]"
        rows = found.to_pylist()
        assert [int(row["time"].timestamp()) - BEGIN for row in rows] == [0, 60, 120] * 2
        assert [(row["metric"], row["host"], row["value"]) for row in rows] == [
            *[("load", "n1", step + 0.045) for step in range(3)],
            *[("power", "n1", float(step)) for step in range(3)],
        ]
        store.write(f"load,hostname=n2 value=9 {BEGIN + 120}\n")
        over = table(over="nodes", metrics=["load"])
        assert over.column_names == ["time", "metric", "min", "mean", "max"]
        last = over.to_pylist()[-1]
        assert (last["min"], last["mean"], last["max"]) == (2.045, (2.045 + 9) / 2, 9.0)
        assert table(hosts=["n2"], **{"from": BEGIN + 120}).to_pylist()[0]["value"] == 9.0
        assert table(hosts=["nobody"]).num_rows == 0


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


def test_an_export_follows_no_link(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        store.stop()
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "lines").symlink_to(other)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        export(tmp_path, str(tmp_path / "lines"))
    assert "a symbolic link is not followed" in failed.value.stderr
    assert other.read_text() == "kept"
    assert "load,cluster=" in export(tmp_path, "/dev/stdout")


def test_any_name_can_be_exported(tmp_path: Path) -> None:
    names = [
        "cpu.load",
        "mem-used",
        "a\\,b",
        "a\\ b",
        "a\\=b",
        "nv:x",
        "é",
        "'",
        "<b>",
        '"q"',
        "a\\nb",
    ]
    lines = "".join(f"{name},hostname={name} value=2.5 {BEGIN}\n" for name in names)
    with RunningStore(tmp_path / "store") as store:
        assert store.write(lines).status == 200
        before = store.ask("GET", "/api/debug/").json()
        store.stop()
    assert export(tmp_path, str(tmp_path / "lines")) == f"exported: {len(names)} values\n"
    with RunningStore(tmp_path / "again") as store:
        assert store.write((tmp_path / "lines").read_text()).status == 200
        assert store.ask("GET", "/api/debug/").json() == before


def test_an_export_in_checkpoints(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        store.stop()
    export(tmp_path, "--format", "binary", str(tmp_path / "files"))
    assert len(list((tmp_path / "files/fox/n1").glob("*.bin"))) == 1


def test_a_kill_during_a_checkpoint_costs_nothing(tmp_path: Path) -> None:
    text = f'[checkpoints]\nformat = "json"\ndirectory = "{tmp_path}/c"\ninterval = "1s"\n'
    (tmp_path / "store.toml").write_text("")
    with RunningStore(tmp_path / "store", "--config", str(tmp_path / "store.toml")) as store:
        for node in range(200):
            store.write("".join(
                f"m{n},hostname=n{node} value={n} {BEGIN + 60 * step}\n"
                for step in range(30) for n in range(5)
            ))  # fmt: skip
        queries = [{"metric": f"m{n}", "host": f"n{node}"} for node in range(200) for n in (0, 4)]
        before = store.query(BEGIN, BEGIN + 3600, *queries)
        store.stop()
        (tmp_path / "store.toml").write_text(text)
        store.start()
        until(lambda: len(list(tmp_path.glob("c/fox/*/*.json"))) > 20, 60)
        store.kill()
        # Values are in the log and, of some nodes, in checkpoints too; nothing is there twice.
        store.start()
        assert store.query(BEGIN, BEGIN + 3600, *queries) == before
        until(lambda: "checkpoint: " in store.log.read_text(), 60)
        store.stop()
        (tmp_path / "store/data/log").rename(tmp_path / "log")
        store.start()
        assert store.query(BEGIN, BEGIN + 3600, *queries) == before


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "store", "metrics", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_status_and_check(tmp_path: Path) -> None:
    with RunningStore(tmp_path / "store") as store:
        fill(store)
        options = ["--data", str(tmp_path / "store/data"), "--listen", f"127.0.0.1:{store.port}"]
        found = run("status", *options)
        assert (found.returncode, "points_total" in found.stdout) == (0, True)
    assert run("status", *options).returncode == 1
    assert run("check", "--config", str(tmp_path / "none")).returncode == 2
    (tmp_path / "wrong.toml").write_text(f'data = "{tmp_path}"\njwt-public-key = "x"\n')
    for command in (["check"], []):
        found = run(*command, "--config", str(tmp_path / "wrong.toml"))
        assert (found.returncode, "jwt-public-key: not base64" in found.stderr) == (2, True)
    found = run("check", "--config", str(reference_config(tmp_path, "wal")))
    assert (found.returncode, found.stdout) == (
        0, "metrics: load, power\nlistens on 127.0.0.1:0, keeps 172800s in memory\n",
    )  # fmt: skip
