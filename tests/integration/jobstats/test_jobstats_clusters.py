"""Two clusters on one file system, with jobs of equal numbers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import read_jobstats_settings
from tests.integration.jobstats.test_jobstats_server import ask_commands
from tests.support.jobstats_store import BEGIN, RunningJobstatsStore, record

RULES = {
    "nodes": '[clusters.fox]\nnodes = ["c[1-8]"]\n[clusters.owl]\nnodes = ["o[1-8]"]\n',
    "formats": '[clusters.fox]\nformats = ["%j:%u:%h"]\n[clusters.owl]\nformats = ["owl:%j"]\n',
    "file systems": """
[clusters.fox]
file-systems = ["fs"]
[clusters.owl]
file-systems = ["tmp"]
""",
}
OTHERS: dict[str, dict[str, Any]] = {
    "nodes": {"entry_id": "42:1002:o2.site"},
    "formats": {"entry_id": "owl:42"},
    "file systems": {"entry_id": "42:1002:c9", "target": "tmp-OST0000"},
}
ANY_TIME = ("--from", "2020-01-01")


def jobs(cluster: str, account: str) -> bytes:
    job = {"job_id": 42, "job_state": "RUNNING", "account": account, "user_name": f"u-{cluster}"}
    reported = BEGIN.isoformat()
    attributes = {"time": reported, "cluster": cluster, "slurm_jobs": [job]}
    meta = {"producer": "ccagent", "version": "1", "format": 0}
    return json.dumps({"meta": meta, "data": {"type": "jobs", "attributes": attributes}}).encode()


def fill(store: RunningJobstatsStore, rules: str) -> None:
    fox = {"entry_id": "42:1001:c1"}
    for fields, amount in ((fox, 100), (OTHERS[rules], 7000)):
        first = record(0, {"write_bytes": 0}, **fields)
        assert store.post([first, record(60, {"write_bytes": amount}, **fields)]).status == 200
    assert store.ask("POST", "/job", jobs("fox", "physics")).status == 200
    assert store.ask("POST", "/job", jobs("owl", "biology")).status == 200


@pytest.fixture
def configuration(tmp_path: Path, database: str) -> Path:
    path = tmp_path / "store.toml"
    path.write_text(f'database = "{database}"\nformats = ["owl:%j", "%j:%u:%h", "%j"]\n')
    return path


@pytest.fixture(params=RULES)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, configuration: Path
) -> Iterator[RunningJobstatsStore]:
    configuration.write_text(configuration.read_text() + RULES[request.param])
    with RunningJobstatsStore(tmp_path / "s", "--config", str(configuration)) as running:
        fill(running, request.param)
        yield running


def rows(store: RunningJobstatsStore, *arguments: str) -> list[list[str]]:
    columns = ("--columns", "write_bytes", "--sort", "write_bytes", "--format", "csv")
    done = ask_commands("top", "--url", store.url, *ANY_TIME, *columns, *arguments)
    assert done.returncode == 0, done.stderr
    return [line.split(",") for line in done.stdout.splitlines()[1:]]


def test_a_job_belongs_to_its_cluster(store: RunningJobstatsStore) -> None:
    assert rows(store) == [["42@owl", "7000"], ["42@fox", "100"]]
    assert rows(store, "--by", "account") == [["biology", "7000"], ["physics", "100"]]
    assert rows(store, "--by", "cluster") == [["owl", "7000"], ["fox", "100"]]
    assert rows(store, "--where", "job=42@fox") == [["42@fox", "100"]]
    assert rows(store, "--where", "cluster=owl", "--where", "job=42") == [["42@owl", "7000"]]


def test_one_of_several_jobs_is_requested(store: RunningJobstatsStore) -> None:
    done = ask_commands("job", "42", "--url", store.url, *ANY_TIME)
    assert done.returncode == 2
    assert "several clusters have a job 42: request one of 42@fox, 42@owl" in done.stderr
    done = ask_commands("job", "42@fox", "--url", store.url, *ANY_TIME)
    assert "cluster fox, user_name u-fox, account physics" in done.stdout
    assert " 100 B" in done.stdout
    assert "KiB" not in done.stdout


def test_rules_apply_to_series_from_before(
    tmp_path: Path, configuration: Path, database: str
) -> None:
    with RunningJobstatsStore(tmp_path / "s", "--config", str(configuration)) as running:
        fill(running, "nodes")
        assert rows(running) == [["42", "7100"]]
        running.stop()
        configuration.write_text(configuration.read_text() + RULES["nodes"])
        running.start()
        assert rows(running) == [["42@owl", "7000"], ["42@fox", "100"]]
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT cluster, total FROM totals ORDER BY 1").fetchall()
    assert found == [("fox", 100), ("owl", 7000)]


def test_equal_ids_without_rules_are_reported(
    tmp_path: Path, configuration: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = read_jobstats_settings(str(configuration), {})
    service = JobstatsService(settings, settings.database)
    service.prepare()
    service.store_jobs(jobs("fox", "a"), "x")
    service.keep_house()
    assert service.numbers()["shared_job_ids"] == 0
    service.store_jobs(jobs("owl", "b"), "x")
    service.keep_house()
    service.close()
    assert service.numbers()["shared_job_ids"] == 1
    assert "1 job ids are of several clusters (fox, owl), and their I/O is added" in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[clusters.fox]\nnodes = ["c[1-"]\n', "clusters.fox.nodes: "),
        ('[clusters.fox]\nformats = ["%q"]\n', "clusters.fox.formats: '%q' is none of formats"),
        ("[clusters.fox]\n", "clusters.fox: expected nodes, formats or file-systems"),
        ('[clusters.fox]\nnode = ["c1"]\n', "clusters.fox.node"),
    ],
)
def test_a_bad_rule_is_refused(configuration: Path, text: str, problem: str) -> None:
    from ccagent.errors import ConfigurationError

    assert tomllib.loads(text)
    configuration.write_text(configuration.read_text() + text)
    with pytest.raises(ConfigurationError) as caught:
        read_jobstats_settings(str(configuration), {})
    assert problem in str(caught.value)
