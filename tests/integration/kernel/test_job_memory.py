"""What receivers add up for real processes in a control group is what the kernel counts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.sonar.jobs.accounting import JobMemoryReader, MemoryScale
from ccagent.machine.node import Node
from ccagent.machine.procfs.process_files import parse_statm
from ccagent.records.envelopes import SampleJob, SampleProcess
from tests.integration.kernel.test_cgroup_accounting import CGROUP, SCOPE, live_cgroup
from tests.support.running import until

PREPARE = """
import mmap, os, sys, threading, time
MB = 1 << 20
def hold(size):
    return b"x" * size
def children(number, work=lambda: None):
    ready, told = os.pipe()
    for _ in range(number):
        if os.fork() == 0:
            kept = work()
            os.write(told, b"x")
            time.sleep(600)
            os._exit(0)
    for _ in range(number):
        os.read(ready, 1)
def touch(area):
    for page in range(0, len(area), 4096):
        area[page] = 1
sys.stdin.readline()
"""
PROGRAMS = {
    "fork": "held = hold(100 * MB); children(4)",
    "threads": """
held = []
threads = [threading.Thread(target=lambda: held.append(hold(25 * MB))) for _ in range(4)]
[each.start() for each in threads]; [each.join() for each in threads]""",
    "tmpfs": """
with open(sys.argv[1], "wb") as file:
    file.write(bytes(150 * MB))""",
    "shared anonymous": "area = mmap.mmap(-1, 150 * MB); touch(area); children(3)",
    "mpi": """
file = open(sys.argv[1], "w+b"); file.truncate(96 * MB)
def rank():
    area = mmap.mmap(file.fileno(), 96 * MB); touch(area)
    return area, hold(20 * MB)
children(4, rank)""",
}

USED = {"fork": 100, "threads": 100, "tmpfs": 150, "shared anonymous": 150, "mpi": 176}
"""MB that each program uses, each page once."""


@pytest.mark.parametrize("program", [*PROGRAMS])
def test_memory_of_a_job_is_that_of_its_control_group(
    program: str, tmp_path: Path, shared_memory: Path
) -> None:
    machine = tmp_path / "machine"
    v1 = Path(f"/{CGROUP}/memory")
    mounted = v1 if v1.exists() else Path(f"/{CGROUP}")
    with live_cgroup(str(mounted)) as directory:
        own = f"{CGROUP}/memory/slurm/uid_0" if v1.exists() else SCOPE
        (machine / own).mkdir(parents=True)
        (machine / own / "job_13").symlink_to(directory, target_is_directory=True)
        text = f"{PREPARE}\n{PROGRAMS[program]}\nprint('ready', flush=True)\ntime.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", text, str(shared_memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            (directory / "cgroup.procs").write_text(f"{process.pid}\n")
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            pids = [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
            processes = [
                SampleProcess(pid=pid, resident_memory=resident(pid)) for pid in sorted(pids)
            ]
            memory = JobMemoryReader().read(Node(root=str(machine), hostname="n", cluster="c"))
            truth = kernel_memory(directory)
        finally:
            kill_all(directory)
            process.communicate()
    before = sum(each.resident_memory for each in processes)
    (job,) = MemoryScale().scale(
        [SampleJob(job=13, user="u", epoch=0, processes=processes)], memory
    )
    after = sum(each.resident_memory for each in job.processes)
    print(f"{program}: {len(pids)} processes, {before} KB, scaled {after} KB, truth {truth} KB")
    assert after == pytest.approx(truth, rel=0.03)
    assert after >= USED[program] * 1024
    if program != "threads":
        assert before != pytest.approx(truth, rel=0.2)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A file on a tmpfs."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", delete=False) as file:
        path = Path(file.name)
    yield path
    path.unlink()


def resident(pid: int) -> int:
    """Return KB of anonymous memory as the agent reads it."""
    return parse_statm(Path(f"/proc/{pid}/statm").read_bytes()).private * 4


def kernel_memory(directory: Path) -> int:
    """Return KB of anonymous and shared memory in memory.stat."""
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    names = ("total_rss", "total_shmem") if "total_rss" in stat else ("anon", "shmem")
    return sum(int(stat[name]) for name in names) // 1024


def kill_all(directory: Path) -> None:
    """End all processes of a control group, and wait until it is empty."""

    def is_empty() -> bool:
        pids = (directory / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return not pids

    until(is_empty)
