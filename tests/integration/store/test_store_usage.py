"""Usage end to end: a running store, its source of factors, and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.machine.clock import timestamp
from ccagent.records.points import encode_tags
from tests.support.http_server import Server, say
from tests.support.metric_store import RunningStore
from tests.support.running import until

END = int(time.time()) // 60 * 60 - 300
BEGIN = END - 1200


@pytest.fixture
def source() -> Iterator[Server]:
    server = Server()
    now = time.time()
    rows = {
        "total_count": 2,
        "results": [{"taux_co2": 50, "date_heure": timestamp(now - ago)} for ago in (0, 3600)],
    }
    server.script += [say(200, json.dumps(rows).encode())] * 3
    yield server
    server.stop()


def event(function: str, **content: object) -> str:
    text = json.dumps(json.dumps({"jobId": 7, "cluster": "fox", "startTime": BEGIN, **content}))
    return f"job,function={function} event={text} {END}\n"


def value(metric: str, number: float, at: int, **tags: str) -> str:
    own = {"hostname": "n1", "type": "node", "stype": "job", "stype-id": "7", **tags}
    return f"{metric}{encode_tags(own)} value={number} {at}\n"


def ccagent(*words: str) -> str:
    command = [sys.executable, "-m", "ccagent", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_job_is_in_the_sums_of_the_command(tmp_path: Path, source: Server) -> None:
    config = tmp_path / "store.toml"
    config.write_text(
        f'[usage]\nsource = "rte"\nsource-url = "http://{source.place}/records"\npue = 1.2\n'
        "price = 0.5\n"
    )
    with RunningStore(tmp_path / "store", "--config", str(config)) as store:
        until(lambda: bool(source.requests))
        assert store.write(
            event("start_job", user="eve", project="bio", resources=[{"hostname": "n1"}])
            + value("job_energy", 1.8e6, BEGIN + 600, part="cpu", share="active")
            + value("job_energy", 3.6e6, END, part="cpu", share="active")
            + value("job_cpu_util", 100, BEGIN + 600)
            + value("job_energy_least", 3.2e6, END)
            + value("job_energy_most", 4.4e6, END)
            + event("stop_job", stopTime=END, jobState="completed")
        ).status == 200  # fmt: skip
        url = f"http://127.0.0.1:{store.port}"
        until(lambda: store.ask("GET", "/api/usage/").json()["total"]["measured"] == 1)
        found = json.loads(ccagent("usage", "--by", "user", "--format", "json", "--store", url))
        (row,) = found["rows"]
        assert (row["key"], row["joules"], row["least"], row["most"]) == (
            "eve",
            3.6e6,
            3.2e6,
            4.4e6,
        )
        assert row["cost"] == pytest.approx(0.6)
        assert row["grams"] == pytest.approx(60)
        table = ccagent("usage", "--last", "1d", "--store", url)
        assert "bio         1  1 kWh (889 Wh to 1.22 kWh)  0.06 kg  0.60 EUR" in table
        report = ccagent("job", "7", "--plain", "--store", url)
        assert "energy  1 kWh (889 Wh to 1.22 kWh)   0.06 kg CO2   0.60 EUR" in report
        assert (
            ccagent("usage", "--format", "csv", "--store", url)
            .splitlines()[1]
            .startswith(",bio,1,")
        )
