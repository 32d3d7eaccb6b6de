"""The control groups of each release of Slurm, and the jobs that every part of ccagent sees.

Layouts are those of the branches slurm-20.11 to slurm-26.05 of SchedMD's repository:
src/common/xcgroup.c and src/plugins/cgroup/v1/xcgroup.c, xcgroup_create_hierarchy() and
_cgroup_init(); src/plugins/cgroup/v2/cgroup_v2.c, _set_int_cg_ns() and cgroup_p_step_create().
tests/integration/kernel/test_job_groups.py has the same of the kernel programs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ccagent.agents.energy.cards import list_processes
from ccagent.agents.energy.job_states import StateReader
from ccagent.agents.fast.bandwidth import find_owners
from ccagent.agents.jobio.points import living_jobs
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.agents.sonar.sources.bpf import BpfSource
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.controls.changes import find_jobs
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.cgroup.files import JobInodes
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.requirements import find_job_groups
from ccagent.views.top.reader import NodeReader
from tests.support.kernel_tree import PinnedNode

JOBS = (13, 14)
CONTROLLERS = ("cpuacct", "cpuset", "devices", "freezer", "memory")


class Layout(NamedTuple):
    """Groups of a release: that of job 13 and of job 14. cpuset: the hierarchy is version 1."""

    groups: tuple[str, str]
    is_v1: bool = False


def v1(*slurm: str) -> Layout:
    return Layout((f"{slurm[0]}/uid_1001/job_13", f"{slurm[-1]}/uid_1001/job_14"), is_v1=True)


def v2(
    *scopes: str, slice_: str = "system.slice", names: tuple[str, str] = ("job_13", "job_14")
) -> Layout:
    return Layout((f"{slice_}/{scopes[0]}/{names[0]}", f"{slice_}/{scopes[-1]}/{names[1]}"))


SLUIDS = ("s5K1KKYAYG5D00", "sEKNKTV3WPV500")
"""The examples of Slurm's cgroup_v2.html."""

LAYOUTS = {
    "20.11 v1": v1("slurm"),
    "20.11 v1, two slurmd": v1("slurm_c1", "slurm_c2"),
    "21.08 v1": v1("slurm"),
    "22.05 v1, two slurmd": v1("slurm_c1", "slurm_c2"),
    "22.05 v2": v2("slurmstepd.scope"),
    "22.05 v2, two slurmd": v2("c1_slurmstepd.scope", "c2_slurmstepd.scope"),
    "23.02 v2": v2("slurmstepd.scope"),
    "23.11 v2": v2("slurmstepd.scope"),
    "24.05 v2": v2("slurmstepd.scope"),
    "24.11 v2": v2("slurmstepd.scope"),
    "25.05 v2": v2("slurmstepd.scope"),
    "25.11 v2, CgroupSlice": v2("slurmstepd.scope", slice_="jobs.slice/jobs-all.slice"),
    "26.05 v1": v1("slurm"),
    "26.05 v2": v2("slurmstepd.scope", names=SLUIDS),
    "26.05 v2, two slurmd": v2("c1_slurmstepd.scope", "c2_slurmstepd.scope", names=SLUIDS),
    "26.05 v2, CgroupSlice": v2("slurmstepd.scope", slice_="jobs.slice", names=SLUIDS),
    "26.05 v2, CgroupJobIdPaths": v2("slurmstepd.scope"),
    "26.05 v2, updated while a job runs": v2("slurmstepd.scope", names=("job_13", SLUIDS[1])),
}


@pytest.fixture(params=LAYOUTS.values(), ids=[*LAYOUTS])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> PinnedNode:
    """A machine with both jobs, and a user that imitates job 99 in a group of its own."""
    layout: Layout = request.param
    node = PinnedNode(tmp_path)
    for number, (job, group) in enumerate(zip(JOBS, layout.groups, strict=True)):
        daemon, task = 100 + 10 * number, 101 + 10 * number
        inside = "step_batch/task_0" if layout.is_v1 else "step_batch/user/task_0"
        of_daemon = "" if layout.is_v1 else "step_batch/slurm"
        lines = [f"0::/{group}/{{}}\n"]
        if layout.is_v1:
            lines = [f"{n}:{name}:/{group}/{{}}\n" for n, name in enumerate(CONTROLLERS, 1)]
        for pid, below, uid in ((daemon, of_daemon, 0), (task, inside, 1001)):
            text = "".join(line.format(below).replace("/\n", "\n") for line in lines)
            command = "slurmstepd" if pid == daemon else "solver"
            node.process(
                pid, ppid=daemon if pid == task else 1, command=command, uid=uid, cgroup=text
            )
            for controller in CONTROLLERS if layout.is_v1 else ("",):
                top = node.path / "sys/fs/cgroup" / controller / group
                (top / below).mkdir(parents=True, exist_ok=True)
                for path in (top, *(top / below).parents, top / below):
                    if path.is_relative_to(top):
                        (path / "cgroup.procs").touch()
                (top / below / "cgroup.procs").write_text(f"{pid}\n")
                (top / "cpuset.cpus").write_text(f"{number}\n")
        node.write(f"{daemon}/cmdline", f"slurmstepd: [{job}.batch]\0\0")
        node.write(f"{daemon}/status", "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n")
    below = "user.slice/user-1002.slice/user@1002.service/system.slice/slurmstepd.scope/job_99"
    (node.path / "sys/fs/cgroup" / below).mkdir(parents=True)
    node.process(140, uid=1002, cgroup=f"0::/{below}/step_0\n")
    node.pin()
    return node


def sampled(source: ProcfsSource | BpfSource) -> dict[int, int]:
    return {process.pid: process.job for process in source.read()}


READERS: dict[str, Callable[[PinnedNode], object]] = {
    "metrics": lambda node: sorted(JobCgroups().read(node)),
    "energy": lambda node: sorted(StateReader().read(node).jobs),
    "cards": lambda node: sorted({job for _, job, uid in list_processes(node) if uid}),
    "jobio": lambda node: sorted(living_jobs(node)),
    "controls": lambda node: sorted(find_jobs(node) or ()),
    "top and job": lambda node: sorted(
        each.job for each in NodeReader(node, has_gpus=False).read().jobs if each.job
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_sees_both_jobs(node: PinnedNode, reader: str) -> None:
    assert READERS[reader](node) == [*JOBS]


@pytest.mark.parametrize("source", [ProcfsSource, BpfSource])
def test_each_process_is_in_its_job(
    node: PinnedNode, source: type[ProcfsSource | BpfSource]
) -> None:
    jobs = sampled(source(node, ProcessSelection()))
    assert jobs == {100: 0, 101: 13, 110: 0, 111: 14, 140: 0}


def test_the_cores_of_jobs_are_theirs(node: PinnedNode) -> None:
    assert find_owners(node, [], range(4)) == {0: "job 13", 1: "job 14"}


def test_the_exporter_has_the_processes(node: PinnedNode) -> None:
    jobs = NodeSources(ExporterSettings()).jobs.get(node).jobs
    assert {each.job: each.pids for each in jobs} == dict(zip(JOBS, [(101,), (111,)], strict=True))


def test_ids_of_groups_are_those_of_their_jobs(node: PinnedNode) -> None:
    directories = job_directories(node, ("memory",))
    for each in directories:
        ids = ((each.controller, node.inode(each.path)),)
        assert JobInodes().job(node, ids) == each.job
    assert {each.job for each in directories} == {*JOBS}


def test_the_doctor_finds_nothing(node: PinnedNode) -> None:
    assert find_job_groups(node).state == "good"
