"""GPUs in `ccagent top`, through the real binding and a stand-in for NVIDIA's library."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ccagent.views.top.reader import NodeReader
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import DRIVER, H100, MIG, NVIDIA, NVIDIA_ADDRESSES

IN_JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"


@pytest.fixture
def nvidia(machine: Machine) -> Machine:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    for pid in (1000, 1001, 1002, 1003):
        machine.node.process(pid, cgroup=IN_JOB)
    machine.node.write("1000/environ", b"SLURM_JOB_NAME=train.py\0SLURM_JOB_GPUS=0,3\0")
    return machine


@pytest.fixture
def reader(nvidia: Machine) -> Iterator[NodeReader]:
    reader = NodeReader(nvidia.node)
    yield reader
    reader.close()


def test_cards_have_their_job_and_their_idle_time(nvidia: Machine, reader: NodeReader) -> None:
    reader.begin()
    nvidia.node.still.passed += 20
    found = reader.read()
    busy, idle = found.cards
    assert (busy.utilization, busy.job, busy.user, busy.idle) == (87.0, 7, "ada", 0.0)
    assert (busy.power, busy.power_limit, busy.temperature) == (512, 700, 61)
    assert (idle.utilization, idle.job, idle.idle) == (0.0, 7, 20.0)
    (job,) = [one for one in found.jobs if one.job == 7]
    assert (job.gpus, job.gpu, job.power) == ((0, 1), 43.5, 512)
    assert job.notes[0] == "G GPU 1 idle"
    process = next(one for one in found.processes if one.pid == 1000)
    assert process.gpus == (0, 1)
    assert process.gpu_memory == 10 << 30


def test_instances_cannot_say_their_use(nvidia: Machine, reader: NodeReader) -> None:
    nvidia.libraries.play(DRIVER.replace("= 2", "= 1") + H100 + MIG)
    reader.begin()
    nvidia.node.still.passed += 100
    cards = reader.read().cards
    assert [card.utilization for card in cards] == [None, None]
    assert {card.idle for card in cards} == {0.0}


def test_a_hanging_library_delays_a_screen_by_a_second(nvidia: Machine, reader: NodeReader) -> None:
    reader.begin()
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetPowerUsage 0 = hang")
    begin = time.monotonic()
    found = reader.read()
    assert time.monotonic() - begin < 30
    assert found.cards == ()
    assert found.hidden[0].startswith("NVML: ")
    begin = time.monotonic()
    reader.read()
    assert time.monotonic() - begin < 30
