"""Sinks that name their receiver, against servers that refuse what these programs refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.machine.node import Node
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.records.encoding import encode
from ccagent.records.envelopes import (
    JobsAttributes,
    JobsData,
    JobsEnvelope,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleJob,
    SampleProcess,
    SampleSystem,
    SlurmJob,
)
from ccagent.records.json_encoding import MetadataObject
from ccagent.records.message import Message, Record
from ccagent.records.points import Point
from ccagent.transports.base import build_transport
from tests.support.dead_letters import read_dead_letters
from tests.support.receiving_programs import CLUSTER, PASSWORD, Jobanalyzer, MetricStore
from tests.support.running import Running, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

META = MetadataObject(producer="ccagent", version="1.0.0")
NOW = "2026-01-31T12:00:00Z"
NODE = Node(hostname="c1-1", cluster=CLUSTER)


@pytest.fixture
def jobanalyzer() -> Iterator[Jobanalyzer]:
    server = Jobanalyzer()
    yield server
    server.stop()


@pytest.fixture
def store() -> Iterator[MetricStore]:
    server = MetricStore()
    yield server
    server.stop()


@pytest.fixture
def password(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(PASSWORD)
    path.chmod(0o600)
    return str(path)


def jobs_envelope(*jobs: SlurmJob) -> JobsEnvelope:
    attributes = JobsAttributes(time=NOW, cluster=CLUSTER, slurm_jobs=[*jobs])
    return JobsEnvelope(meta=META, data=JobsData(type="job", attributes=attributes))


def ended(number: int, name: str = "a") -> SlurmJob:
    return SlurmJob(
        job_id=number,
        job_state="COMPLETED",
        job_name=name,
        submit_time=NOW,
        start_time=NOW,
        end_time=NOW,
    )


def running(number: int) -> SlurmJob:
    return SlurmJob(job_id=number, job_state="RUNNING", submit_time=NOW, start_time=NOW)


def send(table: dict[str, Any], *records: Record) -> list[tuple[Message, str]]:
    """Send records through a queue to a sink; return the dead letters, with the reasons."""
    settings = check_sink(table, "backend", "test")
    queue = Queue("backend", OutboxSettings())
    queue.put(encode(records, settings.profile, NODE))
    sender = Sender("backend", queue, build_transport(settings))
    sender.send_all()
    dead = [(each.message, each.reason) for each in read_dead_letters(queue)]
    assert queue.count() == 0
    sender.close()
    return dead


def sink(server: Jobanalyzer, password: str, receiver: str = "jobanalyzer") -> dict[str, Any]:
    url = f"http://{server.place}/api/v1/insert"
    return {"url": url, "password-file": password, "receiver": receiver}


def test_jobanalyzer_gets_jobs_that_have_not_ended(jobanalyzer: Jobanalyzer, password: str) -> None:
    sent = jobs_envelope(ended(1), running(2), ended(3)), jobs_envelope(running(4))
    assert send(sink(jobanalyzer, password), *sent) == []
    assert jobanalyzer.jobs == [1, 2, 3, 4]
    assert jobanalyzer.answers == [204, 204]


def test_what_jobanalyzer_does_not_know_is_left_out(
    jobanalyzer: Jobanalyzer, password: str
) -> None:
    job = SlurmJob(
        job_id=1,
        job_state="COMPLETED",
        submit_time=NOW,
        start_time=NOW,
        end_time=NOW,
        gres_detail=["gpu:a100:1"],
        minimum_cpus_per_node=2,
    )
    assert send(sink(jobanalyzer, password), jobs_envelope(job)) == []
    assert jobanalyzer.jobs == [1]


def test_a_backlog_is_delivered_as_it_was_put(
    jobanalyzer: Jobanalyzer, password: str, tmp_path: Path
) -> None:
    """Messages of an earlier release, or of another `receiver`, are in the queue's file."""
    old = encode(map(jobs_envelope, [ended(1), running(2), ended(3)]), "sonar", NODE)
    where = OutboxSettings(directory=str(tmp_path / "queue"))
    before = Queue("backend", where)
    before.put(old)
    before.close()

    settings = check_sink(sink(jobanalyzer, password), "backend", "test")
    queue = Queue("backend", where)
    queue.put(encode([jobs_envelope(running(4))], settings.profile, NODE))
    sender = Sender("backend", queue, build_transport(settings))
    sender.send_all()
    sender.close()
    bodies = [request.body for request in jobanalyzer.requests]
    assert bodies[:3] == [each.body for each in old]
    # Without its times, job 2 is refused now as it was then. It costs itself.
    assert jobanalyzer.answers == [204, 422, 204, 204]
    assert jobanalyzer.jobs == [1, 3, 4]


@pytest.mark.parametrize(
    ("bad", "most"), [({17}, 20), ({17, 300}, 40), ({*range(0, 500, 10)}, 500)]
)
def test_without_receiver_only_refused_jobs_are_dead_letters(
    jobanalyzer: Jobanalyzer, password: str, bad: set[int], most: int
) -> None:
    jobs = [running(n) if n in bad else ended(n) for n in range(500)]
    dead = send(sink(jobanalyzer, password, receiver=""), jobs_envelope(*jobs))
    lost = [
        job["job_id"]
        for message, _ in dead
        for job in json.loads(message.body)["data"]["attributes"]["slurm_jobs"]
    ]
    assert sorted(lost) == sorted(bad)
    assert jobanalyzer.jobs == [n for n in range(500) if n not in bad]
    assert len(jobanalyzer.requests) <= most


def test_a_server_that_refuses_everything_is_not_flooded(
    jobanalyzer: Jobanalyzer, password: str
) -> None:
    sent = [
        jobs_envelope(*map(running, range(first, first + 200))) for first in range(0, 4000, 200)
    ]
    dead = send(sink(jobanalyzer, password, receiver=""), *sent)
    expected = [message.body for message in encode(sent, "sonar", NODE)]
    assert [message and message.body for message, _ in dead] == expected
    assert len(jobanalyzer.requests) <= (1 + 64) + 19 * (1 + 6)


def test_bodies_stay_below_the_limit_of_jobanalyzer(
    jobanalyzer: Jobanalyzer, password: str
) -> None:
    jobs = [
        SampleJob(
            job=job,
            user="u",
            epoch=0,
            processes=[SampleProcess(cmd="x" * 15, pid=job * 1000 + n) for n in range(1, 301)],
        )
        for job in range(200)
    ]
    attributes = SampleAttributes(
        time=NOW, cluster=CLUSTER, node="c1-1", system=SampleSystem(boot=NOW), jobs=jobs
    )
    sample = SampleEnvelope(meta=META, data=SampleData(type="sample", attributes=attributes))
    table = sink(jobanalyzer, password) | {"max-payload": 100_000_000}
    (whole,) = encode([sample], "sonar", NODE)
    assert len(whole.body) > 2 * 1024 * 1024
    assert send(table, sample) == []
    assert {*jobanalyzer.answers} == {204}
    pids = [
        process["pid"]
        for each in jobanalyzer.stored
        for job in each["data"]["attributes"]["jobs"]
        for process in job["processes"]
    ]
    assert len(pids) == len({*pids}) == 60_000


def test_the_metric_store_keeps_the_value_of_the_node(store: MetricStore) -> None:
    tags = {"cluster": CLUSTER, "hostname": "c1-1", "type": "node"}
    points: list[Record] = [
        Point("mem_used", tags, 7, 1_700_000_000),
        Point("mem_used", tags | {"stype": "job", "stype-id": "1"}, 1, 1_700_000_000),
        Point("mem_used", tags | {"stype": "job", "stype-id": "2"}, 2, 1_700_000_000),
        Point("acc_util", tags | {"type": "accelerator", "type-id": "0"}, 3, 1_700_000_000),
    ]
    url = f"http://{store.place}/api/write?precision=ns"
    table = {"url": url, "format": "line", "receiver": "cc-metric-store"}
    assert send(table, *points) == []
    assert store.values == {("mem_used", "node", ""): 7.0, ("acc_util", "accelerator", "0"): 3.0}


NO_SLURM = """
cluster = "fox"
hostname = "c1-1"
lock-directory = ""
status-socket = ""
[agents.jobs]
every = "1s"
on-startup = true
sacct = "/nonexistent/sacct"
squeue = "/nonexistent/squeue"
[agents.sample]
every = "1s"
[sinks.backend]
url = "http://PLACE/api/v1/insert"
password-file = "PASSWORD"
KEYS
"""


def test_a_daemon_whose_slurm_fails_does_not_break_jobanalyzer(
    tmp_path: Path, jobanalyzer: Jobanalyzer, password: str
) -> None:
    text = NO_SLURM.replace("PLACE", jobanalyzer.place).replace("PASSWORD", password)
    daemon = Running(tmp_path)
    daemon.start(text.replace("KEYS", 'receiver = "jobanalyzer"'))
    try:
        until(lambda: len(jobanalyzer.stored) >= 2)
        until(lambda: "/nonexistent/sacct" in daemon.said())
    finally:
        daemon.stop()
    assert {*jobanalyzer.answers} == {204}
    assert "not sent to jobanalyzer" in daemon.said()


@pytest.mark.parametrize(("keys", "requests"), [("", 0), ('error-envelopes = "send"', 1)])
def test_envelopes_without_data_go_over_http_on_demand_only(
    tmp_path: Path, jobanalyzer: Jobanalyzer, password: str, keys: str, requests: int
) -> None:
    text = NO_SLURM.replace("PLACE", jobanalyzer.place).replace("PASSWORD", password)
    file = tmp_path / "ccagent.toml"
    file.write_text(text.replace("KEYS", keys))
    command = [sys.executable, "-m", "ccagent", "jobs", "--once", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert len(jobanalyzer.requests) == requests
    assert "/nonexistent/sacct" in done.stderr or requests


def test_config_check_names_what_a_combination_can_lose(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(
        '[agents.jobs]\nstate-file = "/var/lib/ccagent/jobs"\n[sinks.backend]\nurl = "nats://n"\n'
    )
    command = [sys.executable, "-m", "ccagent", "config", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "warning: agents.jobs.state-file: outbox.directory is empty" in done.stderr


def test_jobanalyzer_takes_what_this_machine_tells_of_itself(
    tmp_path: Path, jobanalyzer: Jobanalyzer, password: str
) -> None:
    text = NO_SLURM.replace("PLACE", jobanalyzer.place).replace("PASSWORD", password)
    keys = 'receiver = "jobanalyzer"\n[agents.sysinfo]\nextras = ["software"]\ncuda-root = ""\n'
    file = tmp_path / "ccagent.toml"
    file.write_text(text.replace("KEYS", keys))
    for agent in ("sysinfo", "sample"):
        command = [sys.executable, "-m", "ccagent", agent, "--once", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    assert [each["data"]["type"] for each in jobanalyzer.stored] == ["sysinfo", "sample"]
