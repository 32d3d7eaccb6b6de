"""Events of jobs and nodes against what ClusterCockpit's backend takes, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.slurm.jobs.agent import JobsAgent
from ccagent.agents.slurm.jobs.events import Surroundings, start_event
from ccagent.agents.slurm.jobs.round import Run
from ccagent.agents.slurm.jobs.scontrol import JobDetails, NodeShare
from ccagent.agents.slurm.sinfo import NodeState, node_events
from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import SlurmJob
from ccagent.records.line_protocol import decode
from ccagent.records.message import Message
from tests.support.line_text import line
from tests.unit.agents.slurm.jobs.test_agent import Slurm, job, queued

STATES = frozenset({
    "boot_fail", "cancelled", "completed", "deadline", "failed", "node_fail", "out_of_memory",
    "pending", "preempted", "running", "suspended", "timeout",
})  # fmt: skip
START: dict[str, type] = {
    "jobId": int, "cluster": str, "subCluster": str, "partition": str, "user": str,
    "project": str, "submitTime": int, "startTime": int, "numNodes": int, "numHwthreads": int,
    "numAcc": int, "smt": int, "shared": str, "walltime": int, "requestedMemory": int,
    "arrayJobId": int, "resources": list, "jobState": str, "metaData": dict,
}  # fmt: skip
"""The fields of a start that the backend knows, of those that an agent can have."""

POSITIVE = ("numNodes", "numHwthreads", "numAcc", "walltime", "requestedMemory", "startTime")
"""Fields that are above 0 or absent."""

STOP: dict[str, type] = {
    "jobId": int, "cluster": str, "startTime": int, "jobState": str, "stopTime": int,
}  # fmt: skip
NODE = Node(hostname="master", cluster="fox")
RAN = {"Start": "1699999000", "NodeList": "c[1-2]", "Account": "chem", "TimelimitRaw": "60"}


def check_start(payload: dict[str, Any]) -> None:
    """Refuse what the backend refuses in a start."""
    assert payload.keys() <= START.keys()
    for name, value in payload.items():
        assert type(value) is START[name], name
    assert {"jobId", "cluster", "user", "resources", "numNodes", "startTime"} <= payload.keys()
    assert all(payload[name] > 0 for name in POSITIVE if name in payload)
    assert len(payload["resources"]) == payload["numNodes"]
    for resource in payload["resources"]:
        assert resource.keys() <= {"hostname", "hwthreads", "accelerators"}
        assert all(type(one) is int for one in resource.get("hwthreads", []))
        assert all(type(one) is str for one in resource.get("accelerators", []))
    assert payload["jobState"] == "running"
    assert payload["shared"] in {"none", "single_user", "multi_user"}
    assert payload["metaData"].keys() <= {"jobName", "slurmInfo", "jobScript"}
    assert all(type(value) is str for value in payload["metaData"].values())


def check_stop(payload: dict[str, Any]) -> None:
    """Refuse what the backend refuses in a stop."""
    assert {name: type(value) for name, value in payload.items()} == STOP
    assert payload["jobState"] in STATES - {"running", "pending", "suspended"}
    assert payload["stopTime"] >= payload["startTime"]


class Backend:
    """Takes events as ClusterCockpit's backend does, and keeps the list of jobs."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[int, int], dict[str, Any]] = {}
        self.states: dict[tuple[int, int], str] = {}
        self.refused: list[str] = []

    def take(self, slurm: Slurm, agent: JobsAgent) -> list[tuple[str, dict[str, Any]]]:
        """Sample once; return function and payload of each event."""
        found = self.take_all(encode(agent.sample(slurm.node), ["line"], slurm.node))
        agent.commit_sample()
        return found

    def take_all(self, messages: Iterable[Message]) -> list[tuple[str, dict[str, Any]]]:
        """Take the events of messages; return function and payload of each."""
        found: list[tuple[str, dict[str, Any]]] = []
        for message in messages:
            assert len(message.body) < 1024 * 1024
            for text in message.body.decode().splitlines():
                line = decode(text, "s")
                assert line.measurement == "job"
                assert isinstance(line.value, str)
                found.append((line.tags["function"], json.loads(line.value)))
        for function, payload in found:
            self._start(payload) if function == "start_job" else self._stop(payload)
        return found

    def _start(self, payload: dict[str, Any]) -> None:
        check_start(payload)
        key = payload["jobId"], payload["startTime"]
        assert key not in self.jobs, "two starts with equal id and time"
        if any(number == key[0] and key[1] - begin < 86400 for number, begin in self.jobs):
            self.refused.append(f"start {key}")
            return
        self.jobs[key], self.states[key] = payload, "running"

    def _stop(self, payload: dict[str, Any]) -> None:
        check_stop(payload)
        key = payload["jobId"], payload["startTime"]
        if self.states.get(key) != "running":
            self.refused.append(f"stop {key}")
            return
        self.states[key] = payload["jobState"]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


@pytest.fixture
def backend() -> Backend:
    return Backend()


def started(slurm: Slurm, backend: Backend, **keys: Any) -> dict[str, Any]:
    """Return the one start of a sample."""
    ((function, payload),) = backend.take(slurm, slurm.agent("line", **keys))
    assert function == "start_job"
    return payload


def shown(number: int, nodes: str) -> str:
    """What scontrol shows of a job, with the lines of its nodes."""
    return f"JobId={number} JobName=x\n   JobState=RUNNING Reason=None\n{nodes}   Power="


def test_a_start_has_all_that_the_backend_wants(slurm: Slurm, backend: Backend) -> None:
    row = job(
        2, "RUNNING", **RAN, ReqTRES="billing=8,cpu=8,gres/gpu=3,mem=4G,node=2", ReqMem="4G",
        AllocTRES="billing=8,cpu=8,gres/gpu:a100=3,gres/gpu=3,mem=4G,node=2", ReqNodes="2",
    )  # fmt: skip
    slurm.sacct.prints(row)
    slurm.squeue.prints(queued(2, state="RUNNING", start="1699999000", sharing="NO"))
    text = shown(
        2,
        "     Nodes=c1 CPU_IDs=0-3 Mem=2048 GRES=gpu:a100:1(IDX:1)\n"
        "     Nodes=c2 CPU_IDs=4-7 Mem=2048 GRES=gpu:a100:2(IDX:0-1)\n",
    )
    slurm.scontrol.shows({"2": text})
    slurm.nodes("c1|2|16|2|", "c2|2|16|2|")
    addresses = ["00000000:0E:00.0", "00000000:13:00.0"]
    assert started(slurm, backend, gpu_addresses={"c[1-2]": addresses}) == {
        "jobId": 2, "cluster": "fox", "partition": "normal", "user": "alice", "project": "chem",
        "submitTime": 1699990000, "startTime": 1699999000, "numNodes": 2, "numHwthreads": 8,
        "numAcc": 3, "smt": 2, "shared": "none", "walltime": 3600, "requestedMemory": 4096,
        "resources": [
            {"hostname": "c1", "hwthreads": [0, 1, 32, 33], "accelerators": addresses[1:]},
            {"hostname": "c2", "hwthreads": [2, 3, 34, 35], "accelerators": addresses},
        ],
        "jobState": "running",
        "metaData": {"jobName": "x", "slurmInfo": text},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sharing", "exclusive", "expected"),
    [
        ("NO", "", "none"), ("USER", "", "single_user"), ("OK", "", "multi_user"),
        ("YES", "", "multi_user"),
        # Slurm 26.05: two fields of squeue
        ("NO", "NODE", "none"), ("NO", "USER", "single_user"), ("NO", "NO", "multi_user"),
        ("OK", "NO", "multi_user"), ("NO", "MCS", "multi_user"),
    ],
)  # fmt: skip
def test_who_shares_the_nodes(
    slurm: Slurm, backend: Backend, sharing: str, exclusive: str, expected: str
) -> None:
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    row = queued(2, state="RUNNING", start="1699999000", sharing=sharing, exclusive=exclusive)
    slurm.squeue.prints(row)
    assert started(slurm, backend)["shared"] == expected


def test_the_script_is_sent_on_demand(slurm: Slurm, backend: Backend) -> None:
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    slurm.scontrol.shows({"2": shown(2, "")}, script="#!/bin/sh\nsecret\n")
    assert "jobScript" not in started(slurm, backend)["metaData"]
    with_script = started(slurm, Backend(), job_script=True)
    assert with_script["metaData"]["jobScript"] == "#!/bin/sh\nsecret\n"


def test_without_scontrol_a_start_has_what_accounting_knows(
    slurm: Slurm, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.scontrol.path.unlink()
    slurm.sacct.prints(job(2, "RUNNING", **RAN, AllocTRES="cpu=4,gres/gpu=1,mem=1G,node=2"))
    payload = started(slurm, backend)
    assert (payload["numHwthreads"], payload["numAcc"]) == (4, 1)
    assert payload["resources"] == [{"hostname": "c1"}, {"hostname": "c2"}]
    assert "hwthreads and cards of running jobs are missing" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("COMPLETED", "completed"), ("FAILED", "failed"), ("CANCELLED by 5002", "cancelled"),
        ("TIMEOUT", "timeout"), ("DEADLINE", "deadline"), ("NODE_FAIL", "node_fail"),
        ("BOOT_FAIL", "boot_fail"), ("OUT_OF_MEMORY", "out_of_memory"),
        ("PREEMPTED", "preempted"), ("REVOKED", "cancelled"), ("REQUEUED", "cancelled"),
        ("RESIZING", "completed"),
    ],
)  # fmt: skip
def test_every_end_is_one_that_the_backend_takes(
    slurm: Slurm, backend: Backend, state: str, expected: str
) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    backend.take(slurm, agent)
    slurm.sacct.prints(job(2, state, **RAN, End="1699999900"))
    backend.take(slurm, agent)
    assert backend.states == {(2, 1699999000): expected}
    assert backend.refused == []
    assert backend.take(slurm, agent) == []


def test_a_resized_job_ends_once_and_with_its_own_end(slurm: Slurm, backend: Backend) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    backend.take(slurm, agent)
    before = job(2, "RESIZING", **RAN, End="1699999500")
    after = {**RAN, "NodeList": "c1", "Submit": "1699999500"}
    slurm.sacct.prints(before, job(2, "RUNNING", **after))
    assert backend.take(slurm, agent) == []
    slurm.sacct.prints(before, job(2, "FAILED", **after, End="1699999900"))
    backend.take(slurm, agent)
    assert backend.states == {(2, 1699999000): "failed"}
    assert backend.refused == []


def test_a_job_whose_resizes_change_its_start_ends_once(slurm: Slurm, backend: Backend) -> None:
    # sacct of Slurm 26.05.3: each resize is a submission and a start.
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    backend.take(slurm, agent)
    rows = [job(2, "RESIZING", **RAN, End="1699999500")]
    for begin, end in (("1699999500", "1699999700"), ("1699999700", "1699999900")):
        again = {**RAN, "NodeList": "c1", "Submit": begin, "Start": begin}
        slurm.sacct.prints(*rows, job(2, "RUNNING", **again))
        assert backend.take(slurm, agent) == []
        rows.append(job(2, "RESIZING", **again, End=end))
    slurm.sacct.prints(*rows[:-1], job(2, "FAILED", **again, End="1699999900"))
    backend.take(slurm, agent)
    assert backend.states == {(2, 1699999000): "failed"}
    assert backend.refused == []


def test_the_queue_knows_the_start_of_a_job_resized_before_the_window(
    slurm: Slurm, backend: Backend
) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    backend.take(slurm, agent)
    again = {**RAN, "NodeList": "c1", "Submit": "1699999500", "Start": "1699999500"}
    ended = queued(2, state="FAILED", start="1699999000", end="1699999900", nodes="c1")
    slurm.squeue.prints(ended)
    slurm.sacct.prints(job(2, "FAILED", **again, End="1699999900"))
    backend.take(slurm, agent)
    assert backend.states == {(2, 1699999000): "failed"}
    assert backend.refused == []


def test_a_job_that_is_first_seen_resized_starts_once(slurm: Slurm, backend: Backend) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(1))
    backend.take(slurm, agent)
    before = job(2, "RESIZING", **RAN, End="1699999500")
    after = {**RAN, "NodeList": "c1", "Submit": "1699999500"}
    slurm.sacct.prints(before, job(2, "COMPLETED", **after, End="1699999900"))
    assert [function for function, _ in backend.take(slurm, agent)] == ["start_job", "stop_job"]
    assert backend.states == {(2, 1699999000): "completed"}


def test_a_resized_job_starts_at_the_first_look_once_accounting_has_settled(
    slurm: Slurm, backend: Backend
) -> None:
    agent = slurm.agent("line")
    before = job(2, "RESIZING", **RAN | {"Start": "1699999000"}, End="1699999995")
    slurm.clock.now += 10
    slurm.sacct.prints(before, job(2, "RUNNING", **RAN | {"Submit": "1700000005"}))
    assert backend.take(slurm, agent) == []
    slurm.clock.now += 60
    backend.take(slurm, agent)
    slurm.sacct.prints(before, job(2, "FAILED", **RAN | {"Submit": "1700000005"}, End="1700000030"))
    backend.take(slurm, agent)
    assert backend.states == {(2, 1699999000): "failed"}
    assert backend.refused == []


@pytest.mark.slow
def test_events_are_repeated_on_demand(slurm: Slurm) -> None:
    # For a backend that was down, or restored from a copy.
    agent = slurm.agent("line", repeat_events=Duration("1h"))
    running = job(2, "RUNNING", **RAN)
    slurm.sacct.prints(running)
    Backend().take(slurm, agent)
    slurm.sacct.prints(running, job(3, **RAN, End="1699999900"))
    assert {payload["jobId"] for _, payload in Backend().take(slurm, agent)} == {3}
    assert Backend().take(slurm, agent) == []
    slurm.clock.now += 3600
    restored = Backend()
    restored.take(slurm, agent)
    assert restored.states == {(2, 1699999000): "running", (3, 1699999000): "completed"}
    assert Backend().take(slurm, agent) == []


def test_a_restart_between_start_and_stop_neither_loses_nor_repeats_events(
    slurm: Slurm, backend: Backend, tmp_path: Path
) -> None:
    path = str(tmp_path / "jobs.state")
    running, other = job(2, "RUNNING", **RAN), job(3, "RUNNING", **RAN)
    slurm.sacct.prints(running, other)
    agent = slurm.agent("line", state_file=path)
    backend.take(slurm, agent)
    agent.save_state()
    slurm.sacct.prints(job(2, **RAN, End="1699999900"), other)
    agent = slurm.agent("line", state_file=path)
    found = backend.take(slurm, agent)
    agent.save_state()
    assert [(function, payload["jobId"]) for function, payload in found] == [("stop_job", 2)]
    assert backend.states == {(2, 1699999000): "completed", (3, 1699999000): "running"}
    assert backend.take(slurm, slurm.agent("line", state_file=path)) == []


def test_a_requeued_job_does_not_run_for_ever(slurm: Slurm, backend: Backend) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN))
    backend.take(slurm, agent)
    first = job(2, "REQUEUED", **RAN, End="1699999500")
    again = {**RAN, "Submit": "1699999500", "Start": "1699999600"}
    slurm.sacct.prints(first, job(2, "RUNNING", **again))
    backend.take(slurm, agent)
    slurm.sacct.prints(first, job(2, "COMPLETED", **again, End="1699999900"))
    backend.take(slurm, agent)
    assert "running" not in backend.states.values()
    # The backend itself takes no second start within a day.
    assert backend.refused == ["start (2, 1699999600)", "stop (2, 1699999600)"]


@pytest.mark.parametrize("nodes", ["", "None assigned"])
def test_a_job_without_nodes_does_not_start(slurm: Slurm, backend: Backend, nodes: str) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(1))
    backend.take(slurm, agent)
    ran = RAN | {"NodeList": nodes}
    slurm.sacct.prints(job(2, "RUNNING", **ran), job(3, "CANCELLED by 5", **ran, End="1699999000"))
    assert backend.take(slurm, agent) == []


def test_a_start_waits_until_accounting_is_settled_and_comes_once(
    slurm: Slurm, backend: Backend
) -> None:
    agent = slurm.agent("line")
    slurm.sacct.prints(job(2, "RUNNING", **RAN | {"Start": "1699999995"}))
    assert backend.take(slurm, agent) == []
    slurm.clock.now += 60
    assert len(backend.take(slurm, agent)) == 1
    # Its end is not settled yet: nothing is told, and the start is not told again later.
    ran = RAN | {"Start": "1699999995"}
    slurm.sacct.prints(job(2, "COMPLETED", **ran, End="1700000055"))
    assert backend.take(slurm, agent) == []
    slurm.clock.now += 60
    assert [function for function, _ in backend.take(slurm, agent)] == ["stop_job"]


@pytest.mark.slow
def test_an_event_that_is_too_large_loses_its_text_first() -> None:
    record = SlurmJob(
        job_id=7, job_state="RUNNING", user_name="alice", account="chem", nodes=["c[1-9000]"]
    )

    def start(details: JobDetails) -> dict[str, Any]:
        run = Run(record, submit=1, begin=2, end=0, is_start_new=True, sharing="NO")
        event = start_event(NODE, run, details, Surroundings())
        assert event is not None
        text = line(event)
        assert len(text) < 512 * 1024
        value = decode(text, "s").value
        assert isinstance(value, str)
        payload: dict[str, Any] = json.loads(value)
        check_start(payload)
        return payload

    few = {f"c{n}": NodeShare([0], []) for n in range(1, 10)}
    payload = start(JobDetails("info", few, script='"' * 200_000))
    assert payload["metaData"] == {"slurmInfo": "info"}
    payload = start(JobDetails('"' * 100_000, few))
    assert payload["metaData"] == {}
    assert payload["resources"][0] == {"hostname": "c1", "hwthreads": [0]}
    many = {f"c{n}": NodeShare(list(range(128)), []) for n in range(1, 9001)}
    assert start(JobDetails("info", many))["resources"][0] == {"hostname": "c1"}


def test_an_odd_range_of_hosts_is_refused(slurm: Slurm) -> None:
    with pytest.raises(ConfigurationError, match=r"agents\.jobs\.gpu-addresses: "):
        slurm.agent("line", gpu_addresses={"c[": ["00000000:0E:00.0"]})


def test_the_states_of_ten_thousand_nodes_are_several_events() -> None:
    states = [
        NodeState(
            hostname=f"node-{n:05d}.cluster.example.org", states=["allocated"], cpus_allocated=128,
            memory_allocated=512000, gpus_allocated=4, jobs_running=3,
        )
        for n in range(10_000)
    ]  # fmt: skip
    lines = [line(event) for event in node_events(NODE, states)]
    assert max(map(len, lines)) < 512 * 1024
    hosts: list[str] = []
    for text in lines:
        value = decode(text, "s").value
        assert isinstance(value, str)
        payload = json.loads(value)
        assert payload.keys() == {"cluster", "nodes"}
        for one in payload["nodes"]:
            assert {name: type(part) for name, part in one.items()} == {
                "hostname": str, "states": list, "cpusAllocated": int, "memoryAllocated": int,
                "gpusAllocated": int, "jobsRunning": int,
            }  # fmt: skip
        hosts += [one["hostname"] for one in payload["nodes"]]
    assert hosts == [state.hostname for state in states]
    assert len(lines) < 10
