"""The agent `jobio` on a machine that has the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.jobio.agent import JobIoAgent, JobIoSettings
from ccagent.agents.jobio.usage import remedy
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError, NotPermittedError, UnparsableError
from ccagent.machine.bpf.io_records import HAS_TIME
from ccagent.records.points import Point
from tests.support.job_io import MOUNTS, JobIoNode


@pytest.fixture
def node(tmp_path: Path) -> JobIoNode:
    return JobIoNode(tmp_path)


def make(node: JobIoNode, **keys: Any) -> JobIoAgent:
    agent = JobIoAgent(JobIoSettings(**keys), frozenset({"line"}))
    agent.prepare(node)
    node.pass_time(10)
    return agent


def sample(agent: JobIoAgent, node: JobIoNode) -> dict[tuple[str, str, str], float]:
    """The values by metric, job and mount."""
    points = list(agent.sample(node))
    for point in points:
        point.encode_line()
    return {(p.name, p.tags["stype-id"], p.tags.get("mountpoint", "")): p.value for p in points}


def test_readings_are_not_further_apart_than_ended_jobs_are_kept() -> None:
    for every in ("10m", "1m"):
        convert({"every": every}, JobIoSettings, "agents.jobio", place="test")
    with pytest.raises(ConfigurationError, match="at most 10m"):
        convert({"every": "15m"}, JobIoSettings, "agents.jobio", place="test")


def test_who_may_not_read_is_told_of_the_group() -> None:
    assert "--group NAME" in remedy(NotPermittedError("/run/x/io: Permission denied"))
    assert remedy(UnparsableError("layout 2")) == "as root: ccagent kernel load --io"


def test_rates_of_a_job_by_mount(node: JobIoNode) -> None:
    agent = make(node)
    node.count(7, "0:40", reads=20, read_bytes=1000, opens=3, stats=7)
    node.count(7, "8:1", writes=10, write_bytes=500, async_write_bytes=200, async_writes=1)
    found = sample(agent, node)
    assert found["job_fs_read", "7", "/home"] == 100
    assert found["job_fs_reads", "7", "/home"] == 2
    assert found["job_fs_metadata", "7", "/home"] == 1
    assert found["job_fs_write", "7", "/"] == 70
    assert found["job_fs_write_async", "7", "/"] == 20
    assert ("job_fs_write_async", "7", "/home") not in found


def test_mounts_of_one_name_are_told_apart_by_their_source(node: JobIoNode) -> None:
    over = "39 37 0:42 / /home rw - lustre 10.0.0.2@o2ib:/new rw\n"
    node.write("self/mountinfo", f"{MOUNTS}{over}")
    agent = make(node)
    node.count(7, "0:40", read_bytes=1000)
    node.count(7, "0:42", read_bytes=500)
    found = {
        (point.tags["mountpoint"], point.tags["source"]): point.value
        for point in agent.sample(node)
        if point.name == "job_fs_read"
    }
    assert found == {
        ("/home", "10.0.0.1@o2ib:/scratch"): 100,
        ("/home", "10.0.0.2@o2ib:/new"): 50,
    }


def test_a_job_that_ends_before_the_reading_loses_nothing(node: JobIoNode) -> None:
    agent = make(node)
    node.start_job(7)
    node.count(7, "8:1", reads=1, read_bytes=4096)
    node.end_job(7)
    assert sample(agent, node)["job_fs_read", "7", "/"] == 409.6
    node.pass_time(10)
    assert sample(agent, node) == {}


def test_a_job_that_does_nothing_has_zeros_as_long_as_it_lives(node: JobIoNode) -> None:
    agent = make(node)
    node.start_job(7)
    node.count(7, "8:1", reads=1)
    sample(agent, node)
    node.pass_time(10)
    assert sample(agent, node)["job_fs_reads", "7", "/"] == 0


def test_two_devices_of_one_name_are_summed_up(node: JobIoNode) -> None:
    agent = make(node, mounts=("/nowhere",))
    node.count(7, "8:1", read_bytes=100)
    node.count(7, "0:40", read_bytes=300)
    assert sample(agent, node)["job_fs_read", "7", "other"] == 40


def test_what_happens_outside_of_jobs_is_sent_on_demand(node: JobIoNode) -> None:
    silent, telling = make(node), make(node, outside=True)
    node.count(0, "8:1", read_bytes=100)
    assert sample(silent, node) == {}
    assert sample(telling, node)["job_fs_read", "0", "/"] > 0


def test_counters_and_kinds_are_sent_on_demand(node: JobIoNode) -> None:
    node.count(7, "8:1", read_bytes=100, unlinks=4)
    agent = make(node, totals=True, operations=True)
    node.count(7, "8:1", read_bytes=50, unlinks=10)
    found = sample(agent, node)
    assert found["job_fs_read_total", "7", "/"] == 150
    assert found["job_fs_unlinks", "7", "/"] == 1
    assert found["job_fs_unlinks_total", "7", "/"] == 14


def test_latency_is_the_mean_time_of_a_call(node: JobIoNode) -> None:
    node.features |= HAS_TIME
    agent = make(node)
    node.count(7, "8:1", reads=4, read_ns=80_000)
    found = sample(agent, node)
    assert found["job_fs_read_time", "7", "/"] == 20
    assert ("job_fs_write_time", "7", "/") not in found


def test_traffic_of_a_job_by_protocol(node: JobIoNode) -> None:
    agent = make(node)
    node.transfer(7, "tcp", sent=1000)
    node.transfer(7, "tcp", is_loopback=True, sent=500)
    points: dict[tuple[str, str], Point] = {}
    for point in agent.sample(node):
        points[point.name, point.tags["loopback"]] = point
    assert points["job_net_sent", "no"].value == 100
    assert points["job_net_sent", "yes"].value == 50
    assert points["job_net_sent", "no"].tags["layer"] == "socket"


def test_without_the_programs_the_agent_says_how_to_load_them(
    node: JobIoNode, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(node, directory="/run/nowhere")
    assert sample(agent, node) == {}
    assert agent.is_blind
    assert "as root: ccagent kernel load --io" in caplog.text


def test_calls_that_found_no_room_are_logged(
    node: JobIoNode, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(node)
    node.lost = node.lost._replace(reads=3)
    node.pin()
    sample(agent, node)
    assert "3 calls of jobs are not counted: the kernel's table is full" in caplog.text
    assert agent.describe() == {"lost": 3, "missed": 0, "not_counted": []}


def test_the_doctor_sees_whether_the_programs_are_there(node: JobIoNode) -> None:
    (check,) = make(node).checks(node)
    assert check.find() is not None
    assert check.find().state == "good"  # type: ignore[union-attr]
    (check,) = make(node, directory="/run/nowhere").checks(node)
    assert check.find().fix == "as root: ccagent kernel load --io"  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [b"", b"ccioent\n", b"\0" * 100])
def test_a_damaged_reading_costs_itself(
    node: JobIoNode, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(node)
    (node.directory / "io").write_bytes(damage)
    assert sample(agent, node) == {}
    assert "agent jobio: " in caplog.text
    node.count(7, "8:1", read_bytes=100)
    assert sample(agent, node)["job_fs_read", "7", "/"] == 10
