"""Reading a node: jobs of control groups, their processes, rates since the reading before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from ccagent.agents.sonar.process import ENDED, FIRST_PID_OF_ENDED
from ccagent.views.top.reader import NodeReader
from ccagent.views.top.snapshot import TopJob
from tests.support.tree import TreeNode

GROUP = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
IN_JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"


def write_group(node: TreeNode, *, cpu: int = 0, resident: int = 1 << 30, read: int = 0) -> None:
    for name, content in {
        "memory.current": 3 << 30, "memory.peak": 4 << 30, "memory.max": 8 << 30,
        "memory.stat": f"anon {resident - 100}\nfile 2000000000\nshmem 100\n",
        "memory.events": "oom_kill 0\n", "cpu.stat": f"usage_usec {cpu}\n",
        "memory.pressure": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={cpu // 4}\n",
        "cpuset.cpus": "0-3\n", "io.stat": f"8:0 rbytes={read} wbytes=0 rios=1 wios=1\n",
    }.items():  # fmt: skip
        path = node.path / GROUP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content))


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.process(1, command="systemd", uid=0)
    node.process(20, command="relax", cgroup=IN_JOB, utime=100, threads=4, start=90_000)
    node.write("20/environ", b"SLURM_JOB_NAME=fit\0SLURM_JOB_PARTITION=gpu\0")
    write_group(node)
    return node


@pytest.fixture
def reader(node: TreeNode) -> Iterator[NodeReader]:
    reader = NodeReader(node)
    yield reader
    reader.close()


def find(jobs: tuple[TopJob, ...], number: int) -> TopJob:
    return next(job for job in jobs if job.job == number)


def test_a_job_has_what_its_control_group_and_its_processes_have(
    node: TreeNode, reader: NodeReader
) -> None:
    reader.begin()
    node.still.passed += 2
    write_group(node, cpu=6_000_000)
    node.process(20, command="relax", cgroup=IN_JOB, utime=700, threads=4, start=90_000,
                 io="rchar: 2049025\nwchar: 1024\ncancelled_write_bytes: 1\n")  # fmt: skip
    found = reader.read()
    job = find(found.jobs, 7)
    assert (job.user, job.name, job.partition, job.cpus) == ("ada", "fit", "gpu", 4)
    assert (job.cores, job.cpu) == (3.0, 75.0)
    assert (job.memory, job.memory_limit, job.peak) == (1 << 30, 8 << 30, 4 << 30)
    assert (job.processes, job.threads, job.read) == (1, 4, 1_024_000)
    assert job.pressure == (None, 75.0, None)
    assert job.elapsed == 102.0
    assert (found.memory_total, found.load) == (16_384_000, 0.5)
    assert {one.command for one in found.processes} == {"systemd", "relax"}


def test_ended_processes_count_for_the_job(node: TreeNode, reader: NodeReader) -> None:
    reader.begin()
    node.still.passed += 2
    write_group(node, cpu=2_000_000)
    node.end(20)
    job = find(reader.read().jobs, 7)
    assert (job.cores, job.processes) == (1.0, 0)
    assert (job.user, job.notes[-1]) == ("ada", "? incomplete")


def test_without_processes_the_control_group_tells_of_io(
    node: TreeNode, reader: NodeReader
) -> None:
    node.end(20)
    reader.begin()
    node.still.passed += 2
    write_group(node, read=4096)
    assert find(reader.read().jobs, 7).read == 2048.0
    (node.path / GROUP / "io.stat").unlink()
    assert find(reader.read().jobs, 7).read is None


def test_ended_processes_have_no_number(
    node: TreeNode, reader: NodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.begin()
    (process, *_) = reader._source.read()
    ended = structs.replace(
        process, pid=FIRST_PID_OF_ENDED + 5, command=f"cc1{ENDED}", is_ended=True
    )
    monkeypatch.setattr(reader._source, "read", lambda: [process, ended])
    found = {one.command: (one.pid, one.is_ended) for one in reader.read().processes}
    assert found == {process.command: (process.pid, False), "cc1 <ended>": (0, True)}


def test_a_job_that_ended_is_gone(node: TreeNode, reader: NodeReader) -> None:
    import shutil

    reader.begin()
    node.end(20)
    shutil.rmtree(node.path / GROUP)
    assert [job.job for job in reader.read().jobs] == [0]


def test_a_node_without_slurm_has_the_system_alone(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.process(1)
    reader = NodeReader(node)
    assert [(job.job, job.user, job.processes) for job in reader.read().jobs] == [(0, "", 1)]
    reader.close()


def test_damaged_files_cost_their_values(node: TreeNode, reader: NodeReader) -> None:
    reader.begin()
    for name in ("stat", "meminfo", "loadavg"):
        node.write(name, b"\xff\0x")
    (node.path / GROUP / "memory.current").write_text("x")
    (node.path / GROUP / "cpu.stat").unlink()
    found = reader.read()
    assert (found.cpus, found.memory_total, found.load) == ((), 0.0, 0.0)
    assert find(found.jobs, 7).charged is None
    assert "memory.current" in found.hidden[0]


def test_who_sees_only_the_own_processes_hears_of_hidepid_unless_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    node = TreeNode(tmp_path)
    node.process(20, uid=1001)
    for has_first in (False, True):
        if has_first:  # as in a container of this user
            node.process(1, uid=1001)
        reader = NodeReader(node)
        hidden = reader.read().hidden
        reader.close()
        assert ("hidepid" in "".join(hidden)) is not has_first


def test_a_node_without_proc_says_so(tmp_path: Path) -> None:
    import shutil

    node = TreeNode(tmp_path)
    shutil.rmtree(tmp_path / "proc")
    reader = NodeReader(node)
    assert reader.read().hidden[-1] == "no process can be seen: is /proc mounted?"
    reader.close()


def test_an_ordinary_user_hears_what_is_hidden(
    node: TreeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1002)
    reader = NodeReader(node)
    reader.begin()
    node.still.passed += 2
    write_group(node, read=4096)
    found = reader.read()
    assert "as an ordinary user" in found.hidden[-1]
    assert {one.read for one in found.processes} == {None}
    assert find(found.jobs, 7).read == 2048.0
    reader.close()
