"""Programs in this machine's kernel, in a directory of their own; control groups of jobs."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ccagent.machine.bpf import loading, pins
from ccagent.machine.bpf.loading import unmount
from ccagent.machine.bpf.process_records import Task, parse_tasks
from ccagent.machine.node import Node
from tests.support.ended_records import EndedReading, parse_ended

SOURCES = Path(loading.__file__).parent
NOBODY = 65534
NODE = Node(hostname="localhost", cluster="local")


@contextmanager
def own_directory() -> Generator[str]:
    """A place to load to that is not there before, nor afterwards. Others can reach it."""
    directory = f"/run/ccagent-test-kernel-{os.getpid()}"
    loading.unload(directory)
    try:
        yield directory
    finally:
        loading.unload(directory)
        with suppress(FileNotFoundError):
            os.rmdir(directory)


def read_tasks(directory: str) -> dict[int, Task]:
    content = NODE.read(f"{directory}/{pins.TASKS}".lstrip("/"), 1 << 28)
    return {task.pid: task for task in parse_tasks(content)}


def read_ended(directory: str) -> EndedReading:
    """All entries, read by a process of its own."""
    result = subprocess.run(["cat", f"{directory}/{pins.ENDED}"], capture_output=True, check=True)
    return parse_ended(result.stdout)


def program_ids(directory: str) -> list[int]:
    """The kernel's numbers of the programs that are pinned, as root."""
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    found: list[int] = []
    for name in (pins.TASKS, pins.ENDED, pins.ON_EXIT, pins.ON_FREE):
        descriptor = library.bpf_obj_get(f"{directory}/{name}".encode())
        assert descriptor >= 0, os.strerror(ctypes.get_errno())
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        found += map(int, re.findall(r"prog_id:\s+(\d+)", text))
        os.close(descriptor)
    assert len(found) == 4
    return found


def is_in_kernel(program: int) -> bool:
    descriptor: int = ctypes.CDLL("libbpf.so.1").bpf_prog_get_fd_by_id(program)
    if descriptor < 0:
        return False
    os.close(descriptor)
    return True


def compiled(directory: Path, source: str) -> bytes:
    """An object file of a program that uses kernel.bpf.h."""
    file, built = directory / "program.bpf.c", directory / "program.bpf.o"
    licence = 'char _license[] SEC("license") = "Dual MIT/GPL";'
    file.write_text(f'#include "kernel.bpf.h"\n{source}\n{licence}\n')
    clang = ["clang", "-target", "bpf", "-mcpu=v2", "-O2", "-g", f"-I{SOURCES}"]
    subprocess.run([*clang, "-c", file, "-o", built], check=True)
    subprocess.run(["llvm-strip", "--strip-debug", built], check=True)
    return built.read_bytes()


def as_nobody(script: str, *, group: int = NOBODY) -> subprocess.CompletedProcess[str]:
    """Run Python code without privilege. The interpreter may be where only root can read."""
    begin = f"""
import os, encodings.idna, grp
from ccagent.errors import CcagentError
from ccagent.machine.bpf import loading, process_records, status
os.setgroups([])
os.setgid({group})
os.setuid({NOBODY})
"""
    return subprocess.run(
        [sys.executable, "-c", begin + script],
        capture_output=True, text=True, timeout=60, check=False,
        # Nobody can write the file in which coverage is measured.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )  # fmt: skip


_REAPER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
try:
    while not os.wait()[1]:
        pass
    sys.exit("it failed")
except ChildProcessError:
    pass
"""


class JobGroup:
    """A control group as Slurm makes them, in a hierarchy that is mounted for it alone."""

    def __init__(self, root: str, path: str, usage: str) -> None:
        self.top = f"{root}/{path.partition('/')[0]}"
        self.path = f"{root}/{path}"
        self._usage = usage
        if os.path.exists(self.path):  # of tests that were killed
            self.remove()
        os.makedirs(self.path)

    @property
    def inode(self) -> int:
        return os.stat(self.path).st_ino

    def runtime(self) -> int:
        """CPU time in ns by the kernel's own count of the group."""
        text = Path(self.path, self._usage).read_text().split()
        return int(text[0]) if len(text) == 1 else int(text[text.index("usage_usec") + 1]) * 1000

    def run(self, script: str) -> None:
        """Run a script of the shell in the group, and wait for all that it starts, orphans too."""
        join = f"echo $$ > {self.path}/cgroup.procs; {script}"
        subprocess.run([sys.executable, "-c", _REAPER, "sh", "-c", join], check=True, timeout=60)

    def remove(self) -> None:
        """Remove the group and those above it."""
        path, root = self.path, os.path.dirname(self.top)
        while path != root:
            for _ in range(100):
                try:
                    os.rmdir(path)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
            path = os.path.dirname(path)


@contextmanager
def hierarchy(version: str) -> Generator[str]:
    """Mount control groups of one version: `v1` has the controller cpuacct."""
    root = tempfile.mkdtemp(prefix="ccagent-test-cgroup-", dir="/run")
    kind = ["-t", "cgroup", "-o", "cpuacct"] if version == "v1" else ["-t", "cgroup2"]
    try:
        subprocess.run(["mount", *kind, "ccagent-test", root], check=True)
        try:
            yield root
        finally:
            unmount(root)
    finally:
        shutil.rmtree(root)
