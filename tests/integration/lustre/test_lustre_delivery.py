"""Records of Lustre on their way to real receivers, and what the command line has for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import Server
from tests.support.lustre_server import SimulatedTarget
from tests.support.mqtt_broker import Broker, Subscriber
from tests.support.nats_server import Bench
from tests.support.paths import DATA

CONFIGURATION = """
cluster = "fox"
hostname = "oss1"
[outbox]
directory = "{directory}/outbox"
[agents.lustre]
input = "{directory}/dump"
batch-size = 7
state-file = "{directory}/state"
[sinks.files]
url = "dir:{directory}/files"
[sinks.receiver]
url = "http://{http}/api"
[sinks.stream]
url = "{nats}"
jetstream = true
[sinks.broker]
url = "{mqtt}"
qos = 1
[sinks.store]
url = "http://{http}/write"
format = "line"
"""


def ccagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """What lctl prints on a server, ids of all kinds among it."""
    target = SimulatedTarget("fs-OST0000", "obdfilter")
    ids = [
        "11:5000:c1",
        ":5000:c1",
        "kworker/0:1.0",
        "Web Content.5000",
        'a"b\\c',
        "größe.1",
        "x\ny",
    ]
    for number, entry in enumerate([*ids, *(f"{job}:1:c1" for job in range(100, 120))]):
        target.do(entry, "write_bytes", number + 1, 4096, now=1_700_000_000.25)
    path = tmp_path / "dump"
    path.write_bytes(target.parameter("2.16", 1_700_000_001.0))
    return path


@pytest.fixture
def receiver() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "broker")
    yield made
    made.kill()


@pytest.mark.usefixtures("dump")
def test_they_arrive_unchanged_through_the_outbox(
    tmp_path: Path, receiver: Server, broker: Broker
) -> None:
    with Bench(tmp_path / "nats") as bench:
        stream = bench.stream_server()
        subscriber = Subscriber(broker, "+/lustre/#")
        configuration = tmp_path / "ccagent.toml"
        configuration.write_text(
            CONFIGURATION.format(
                directory=tmp_path, http=receiver.place, nats=stream.url, mqtt=broker.url()
            )
        )
        done = ccagent("lustre", "--once", "--config", str(configuration))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        (path,) = (tmp_path / "files").rglob("*.json")
        arrays = path.read_bytes().splitlines()
        assert path.name == "0+lustre-oss1.json"
        assert [len(json.loads(array)) for array in arrays] == [7, 7, 7, 6]
        posted = {request.path: request.body for request in receiver.requests}
        assert [r.body for r in receiver.requests if r.path == "/api/lustre"] == arrays
        assert [body for subject, body, _ in stream.stored() if subject == "fox.lustre"] == arrays
        assert subscriber.payloads(4) == arrays
        subscriber.stop()
        assert b"lustre_write_bytes,cluster=fox,hostname=oss1,type=node value=" in posted["/write"]
        again = ccagent("lustre", "--once", "--config", str(configuration))
        assert again.returncode == 0, again.stderr
        later = [json.loads(line) for line in path.read_bytes().splitlines()[4:]]
        assert sum(map(len, later)) == 27  # no zeros, no resets: nothing has happened since


def test_a_dump_is_printed_as_an_array(dump: Path) -> None:
    done = ccagent("lustre", "--once", "--input", str(dump))
    assert done.returncode == 0, done.stderr
    records: list[dict[str, Any]] = json.loads(done.stdout)
    by_id = {record["entry_id"]: record for record in records}
    assert len(by_id) == len(records) == 27
    assert by_id["kworker/0:1.0"]["executable"] == "kworker/0:1"
    assert by_id["größe.1"]["executable"] == "größe"
    assert by_id["x\\x0ay"]["malformed"]
    assert by_id["11:5000:c1"]["write_bytes"] == 4096


def test_standard_input_may_be_the_dump(dump: Path) -> None:
    command = [sys.executable, "-m", "ccagent", "lustre", "--once", "--input", "/dev/stdin"]
    with dump.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, check=True)
    assert len(json.loads(done.stdout)) == 27


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--input", "/nowhere/dump"], 1, "/nowhere/dump: No such file or directory"),
        (["--input", "/dev/null"], 1, "/dev/null: has no job_stats"),
        (["--set", "lctl=/nowhere/lctl"], 1, "no Lustre server here: neither"),
        (["--set", "formats=['%z']"], 2, "%z is none of %e %h %H %j %u %g %p"),
        (["--set", "statistics=['stat']"], 2, "'stat' is unknown; did you mean 'stats'?"),
        (["--every", "30s", "--once"], 2, "--once and --every exclude each other"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], status: int, message: str) -> None:
    done = ccagent("lustre", *arguments)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


def test_check_says_that_there_is_no_lustre() -> None:
    done = ccagent("lustre", "check")
    assert done.returncode == 1
    assert "no Lustre on this node" in done.stdout
    as_json = ccagent("lustre", "check", "--json")
    assert json.loads(as_json.stdout)[0]["level"] == "problem"


def test_a_clients_statistics_are_points(tmp_path: Path) -> None:
    recorded = DATA / "lustre" / "params"
    lctl = tmp_path / "lctl"
    lctl.write_text(
        f'#!/bin/sh\ncase "$2" in llite*) cat {recorded}/client.txt;; *) exit 2;; esac\n'
    )
    lctl.chmod(0o755)
    settings = ["jobstats=false", 'statistics=["llite"]', f"lctl={lctl}"]
    done = ccagent(
        "lustre", "--format", "line", *(word for each in settings for word in ("--set", each))
    )
    assert done.returncode == 0, done.stderr
    assert "lustre_read_bytes,cluster=" in done.stdout
    assert "lustre_open,cluster=" in done.stdout
