"""What the kernel accounts for in control groups of both versions is what the reader finds."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader
from ccagent.machine.node import Node

CGROUP = "sys/fs/cgroup"
SCOPE = f"{CGROUP}/system.slice/slurmstepd.scope"
MB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root directory whose only job will be a control group of the kernel's."""
    root = tmp_path / "machine"
    (root / CGROUP).mkdir(parents=True)
    return root


def read(machine: Path) -> dict[str, float]:
    """Return the values of job 13 by metric."""
    reader = CgroupJobsReader()
    node = Node(root=str(machine), hostname="n1", cluster="c1")
    found = {one.metric: one.value for one in reader.read(node) if one.scope.stype_id == "13"}
    assert reader.errors == []
    return found


WORKER = """
import sys, time
sys.stdin.readline()
begin = time.process_time()
if len(sys.argv) > 1:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(48 << 20))
held = b"x" * (24 << 20)
while time.process_time() - begin < 0.2:
    pass
print(time.process_time() - begin)
"""


@contextlib.contextmanager
def live_cgroup(mounted: str) -> Generator[Path]:
    """A cgroup of the kernel's; skips where none can be made."""
    try:
        path = Path(tempfile.mkdtemp(prefix="ccagent-test-", dir=mounted))
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield path
    finally:
        path.rmdir()


@contextlib.contextmanager
def worker(*files: Path) -> Generator[subprocess.Popen[str]]:
    """A process that works once it is told to, holds 24 MB and prints its CPU time.

    It writes 48 MB to the file before, if there is one.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children() -> float:
    """CPU seconds of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def work(process: subprocess.Popen[str]) -> float:
    """Have it work; return the CPU seconds that it spent at least."""
    output, _ = process.communicate("go\n")
    return float(output)


def test_the_kernel_accounts_for_a_job_of_version_1(machine: Path, tmp_path: Path) -> None:
    limit = 256 * MB
    with contextlib.ExitStack() as stack:
        directories: dict[str, Path] = {}
        for controller in ("memory", "cpuacct"):
            directories[controller] = stack.enter_context(live_cgroup(f"/{CGROUP}/{controller}"))
            user = machine / CGROUP / controller / "slurm" / "uid_0"
            user.mkdir(parents=True)
            (user / "job_13").symlink_to(directories[controller], target_is_directory=True)
        if not (directories["memory"] / "memory.limit_in_bytes").exists():
            pytest.skip("cgroups of version 1 are not mounted")
        (directories["memory"] / "memory.limit_in_bytes").write_text(f"{limit}\n")
        before = children()
        with worker(tmp_path / "data") as process:
            for directory in directories.values():
                (directory / "cgroup.procs").write_text(f"{process.pid}\n")
            spent = work(process)
        after = children()
        found = read(machine)
    assert spent - 0.001 <= found["job_cpu_util"] / 1e9 <= after - before + 0.001
    assert 24 * MB <= found["job_mem_peak"] <= limit
    assert found["job_mem_used"] <= found["job_mem_peak"]
    # Its processes are gone, the pages of the file that it has written are not.
    assert found["job_mem_used"] > found["job_mem_file"] > 40 * MB
    assert found["job_mem_rss"] == found["job_mem_anon"] + found["job_mem_shmem"] < 8 * MB
    assert (found["job_mem_limit"], found["job_oom_kills"]) == (limit, 0)


def test_the_kernel_accounts_for_a_job_of_version_2(machine: Path) -> None:
    mounted = next(
        (
            path
            for path in (f"/{CGROUP}", f"/{CGROUP}/unified")
            if Path(path, "cgroup.controllers").exists()
        ),
        "",
    )
    if not mounted:
        pytest.skip("cgroups of version 2 are not mounted")
    with live_cgroup(mounted) as scope, contextlib.ExitStack() as stack:
        directory = scope / "job_13"
        directory.mkdir()
        stack.callback(directory.rmdir)
        (machine / SCOPE).parent.mkdir(parents=True)
        (machine / SCOPE).symlink_to(scope, target_is_directory=True)
        before = children()
        with worker() as process:
            (directory / "cgroup.procs").write_text(f"{process.pid}\n")
            spent = work(process)
        after = children()
        found = read(machine)
        has_pressure = (directory / "cpu.pressure").exists()
    assert spent - 0.001 <= found["job_cpu_util"] / 1e9 <= after - before + 0.001
    assert ("job_pressure_cpu" in found) == has_pressure
