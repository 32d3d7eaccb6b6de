"""energy: CPU time, cpus and memory of jobs, by control groups of either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.energy.job_states import NodeUse, StateReader
from tests.support.energy_tree import GIB, EnergyNode


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> EnergyNode:
    return EnergyNode(tmp_path, version=request.param)


def test_a_job_has_cpu_time_cpus_and_memory(node: EnergyNode) -> None:
    node.job(7, "0-1,4")
    node.work(7, {0: 123})
    reader = StateReader()
    state = reader.read(node)
    job = state.jobs[7]
    assert (job.cpu_time, job.cpus, job.memory) == (1_230_000, frozenset({0, 1, 4}), 8 * GIB)
    assert job.uid == (1001 if node.version == 1 else -1)
    assert state.busy[0] == 1_230_000
    assert state.sockets == {cpu: cpu // 4 for cpu in range(8)}
    assert state.memory == 64 * GIB
    assert state.is_complete
    assert reader.errors == []


def test_a_limit_beyond_the_node_is_the_nodes_memory(node: EnergyNode) -> None:
    node.job(7, "0", memory=100 * GIB)
    assert StateReader().read(node).jobs[7].memory == 64 * GIB


def test_without_a_limit_used_memory_counts(node: EnergyNode) -> None:
    node.job(7, "0")
    path = node.job_path(7, "memory")
    limit, used = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current"),
    }[node.version]  # fmt: skip
    node.write(f"{path}/{limit}", "9223372036854771712\n" if node.version == 1 else "max\n")
    node.write(f"{path}/{used}", f"{3 * GIB}\n")
    assert StateReader().read(node).jobs[7].memory == 3 * GIB


def test_waiting_and_stolen_time_is_no_work(node: EnergyNode) -> None:
    node.write("proc/stat", "cpu 1 1 1 1 1 1 1 1\ncpu0 10 20 30 400 500 60 70 800 0 0\nbtime 1\n")
    assert StateReader().read(node).busy == {0: (10 + 20 + 30 + 60 + 70) * 10_000}


def test_a_file_that_makes_no_sense_is_an_error_and_costs_its_value(node: EnergyNode) -> None:
    node.job(7, "0")
    names = {1: ("cpuacct", "cpuacct.usage"), 2: ("", "cpu.stat")}
    controller, name = names[node.version]
    node.write(f"{node.job_path(7, controller)}/{name}", "usage_usec 99999999999999999999\n")
    reader = StateReader()
    state = reader.read(node)
    assert state.jobs[7].cpu_time is None
    assert len(reader.errors) == 1
    node.still.sleep(10)
    use = NodeUse(state, reader.read(node))
    assert not use.jobs[7].is_known


def test_a_node_without_slurm_has_no_jobs(node: EnergyNode) -> None:
    state = StateReader().read(node)
    assert state.jobs == {}
    assert state.is_complete


def test_a_node_of_unknown_cpu_times_is_not_idle(node: EnergyNode) -> None:
    reader = StateReader()
    before = reader.read(node)
    node.still.sleep(10)
    stat = node.path / "proc/stat"
    content = stat.read_bytes()
    stat.unlink()
    blind = reader.read(node)
    stat.write_bytes(content)
    now = reader.read(node)
    assert NodeUse(before, now).is_idle()
    assert not NodeUse(before, blind).is_idle()
    assert not NodeUse(blind, now).is_idle()


def test_time_on_each_socket_is_known_of_a_job_that_owns_its_cpus(node: EnergyNode) -> None:
    node.job(7, "0,4")
    reader = StateReader()
    before = reader.read(node)
    node.work(7, {0: 300, 4: 100})
    node.other_work({1: 50})
    node.still.sleep(10)
    use = NodeUse(before, reader.read(node))
    for socket, expected in ((0, 3_000_000), (1, 1_000_000), (-1, 4_000_000)):
        claim = use.use_package(socket).claims[7]
        assert (claim.busy, claim.least, claim.most) == (expected, expected, expected)
    assert use.use_package(0).busy == 3_500_000
    assert use.exclusive == {7}


def test_time_on_each_socket_is_a_guess_with_bounds_on_shared_cpus(node: EnergyNode) -> None:
    node.job(7, "0,4")
    node.job(8, "0,4")
    reader = StateReader()
    before = reader.read(node)
    node.work(7, {0: 300, 4: 100})
    node.work(8, {0: 100, 4: 200})
    node.still.sleep(10)
    use = NodeUse(before, reader.read(node))
    first, second = use.use_package(0).claims[7], use.use_package(1).claims[7]
    assert first.busy + second.busy == 4_000_000
    assert first.least <= 3_000_000 <= first.most
    assert second.least <= 1_000_000 <= second.most
    assert (first.least, first.most) == (1_000_000, 4_000_000)
    assert use.exclusive == set()
