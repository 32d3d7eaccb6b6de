"""The cards that a real Slurm gives to jobs, seen on its node; the cards are stand-ins."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from tests.support.gpu_libraries import Libraries
from tests.support.running import until
from tests.support.schema import validate
from tests.support.slurm_cluster import SlurmCluster

CARDS = "nvmlDeviceGetCount_v2 = 2\n" + "".join(
    f"nvmlDeviceGetUUID {index} = GPU-{index}\n"
    f"nvmlDeviceGetPciInfo_v3 {index} = 00000000:0{index}:00.0\n"
    f"nvmlDeviceGetMinorNumber {index} = {index}\n"
    f"nvmlDeviceGetMemoryInfo_v2 {index} = 1073741824 0 1073741824 0\n"
    f"nvmlDeviceGetComputeRunningProcesses_v3 {index} = \n"
    f"nvmlDeviceGetProcessUtilization {index} = !6\n"
    for index in (0, 1)
)


class LiveNode(Node):
    """This machine, as if it had two cards."""

    def list(self, path: str) -> list[str]:
        if path == "sys/bus/pci/drivers/nvidia":
            return ["0000:00:00.0", "0000:01:00.0"]
        return super().list(path)


@pytest.fixture
def agent(slurm: SlurmCluster, libraries: Libraries) -> Iterator[SampleAgent]:
    libraries.play(CARDS)
    settings = SampleSettings(
        extras=["allocated-gpus"],
        scontrol=str(slurm.programs / "scontrol"),
        squeue=str(slurm.programs / "squeue"),
    )
    agent = SampleAgent(settings, frozenset({"sonar", "line"}))
    yield agent
    agent.close()


@pytest.fixture
def batch(slurm: SlurmCluster) -> Iterator[int]:
    """A job with one card that runs a process."""
    arguments = ("-p", "accel", "--gres=gpu:a100:1", "-J", "gpu at work", "--wrap=sleep 600")
    job = slurm.submit("alice", *arguments)
    slurm.wait_for(job, {"RUNNING"})
    yield job
    slurm.run("scancel", str(job))


@pytest.fixture
def allocation(slurm: SlurmCluster) -> Iterator[int]:
    """A job with one card that runs nothing: only Slurm knows of it."""
    command = ("salloc", "--no-shell", "-p", "accel", "--gres=gpu:a100:1", "-J", "idle")
    done = subprocess.run(
        slurm.enter(*command, user="bob"), capture_output=True, text=True, timeout=120, check=True
    )
    (job,) = [int(word) for word in done.stderr.split() if word.isdecimal()][:1]
    slurm.wait_for(job, {"RUNNING"})
    yield job
    slurm.run("scancel", str(job))


def sampled(agent: SampleAgent) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the attributes of a sample, and its points of jobs by name and job."""
    node = LiveNode(hostname="vm", cluster="fox")
    attributes: dict[str, Any] = {}
    points: dict[str, float] = {}
    for message in encode(agent.sample(node), ("sonar", "line"), node):
        if message.format == "sonar":
            attributes = validate("SampleEnvelope", message.body)["data"]["attributes"]
            continue
        for line in message.body.decode().splitlines():
            name, _, rest = line.partition(",")
            if "stype-id=" in rest:
                job = rest.partition("stype-id=")[2].partition(",")[0]
                value = line.split(" value=")[1].split()[0].rstrip("iu")
                points[f"{name} {job}"] = float(value)
    return attributes, points


def listed(attributes: dict[str, Any], job: int) -> list[int]:
    """Return the cards that the record of a job's allocation lists."""
    (record,) = [
        process
        for each in attributes["jobs"]
        if (each["job"], each["epoch"]) == (job, 0)
        for process in each["processes"]
        if process["cmd"] == "_allocated_gpus_"
    ]
    return [gpu["index"] for gpu in record["gpus"]]


def of_slurm(slurm: SlurmCluster, job: int) -> list[int]:
    text = slurm.run("scontrol", "-d", "-o", "show", "job", str(job))
    return [int(text.partition("(IDX:")[2].partition(")")[0])]


def test_a_job_at_work_and_its_card(
    slurm: SlurmCluster, agent: SampleAgent, libraries: Libraries, batch: int
) -> None:
    (card,) = of_slurm(slurm, batch)
    attributes, points = sampled(agent)
    assert listed(attributes, batch) == [card]
    assert points[f"job_gpus_allocated {batch}"] == 1
    assert points[f"job_gpus_idle {batch}"] == 1
    pids: list[int] = []

    def has_begun() -> bool:
        (job,) = [each for each in sampled(agent)[0]["jobs"] if each["job"] == batch]
        pids[:] = [p["pid"] for p in job["processes"] if p["cmd"] == "sleep"]
        return bool(pids)

    until(has_begun)
    libraries.play(
        CARDS,
        f"nvmlDeviceGetComputeRunningProcesses_v3 {card} = {pids[0]}:536870912",
        f"nvmlDeviceGetProcessUtilization {card} = {pids[0]}:{time.time_ns() // 1000}:42",
    )
    attributes, points = sampled(agent)
    assert points[f"job_gpus_idle {batch}"] == 0
    assert points[f"job_gpu_util {batch}"] == 42
    assert points[f"job_gpu_mem_used {batch}"] == 0.536870912
    used = [
        process["gpus"]
        for each in attributes["jobs"]
        if each["job"] == batch
        for process in each["processes"]
        if process["pid"] == pids[0]
    ]
    assert used == [
        [
            {
                "index": card,
                "uuid": f"GPU-{card}",
                "gpu_util": 42.0,
                "gpu_memory": 524288,
                "gpu_memory_util": 50.0,
            }
        ]
    ]


def test_a_job_without_any_process_is_seen_with_its_card(
    slurm: SlurmCluster, agent: SampleAgent, batch: int, allocation: int
) -> None:
    if slurm.tracking != "cgroup":
        pytest.skip("without cgroups nothing on the node shows a job that runs nothing")

    def has_groups() -> bool:
        # Slurm makes a job's control groups after it says that the job runs.
        return {batch, allocation} <= {each["job"] for each in sampled(agent)[0]["jobs"]}

    until(has_groups)
    attributes, points = sampled(agent)
    assert listed(attributes, allocation) == of_slurm(slurm, allocation)
    assert listed(attributes, batch) == of_slurm(slurm, batch)
    assert listed(attributes, batch) != listed(attributes, allocation)
    assert points[f"job_gpus_idle {allocation}"] == 1
    (job,) = [j for j in attributes["jobs"] if j["job"] == allocation and not j["epoch"]]
    assert job["user"] == "_user_5002"
