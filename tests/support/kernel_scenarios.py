"""All programs on one kernel: `tasks` and `ended` beside /proc, I/O beside known programs.

Runs in a virtual machine (tests/support/debian_machine.py), as root:

    python -m tests.support.kernel_scenarios > results.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tests.support.io_comparisons import Result, unequal
from tests.support.io_jobs import DIRECTORY, attempt, read_io
from tests.support.io_mounts import all_processors
from tests.support.io_scenarios import count_known_programs
from tests.support.io_tables import talk_in_many_jobs
from tests.support.kernel_programs import JobGroup, hierarchy, read_ended, read_tasks
from tests.support.process_values import (
    ProcFiles,
    anonymous_pages,
    read_proc,
    slack_of_proc,
    values_of_proc,
    values_of_task,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.machine.bpf.process_records import Task
    from tests.support.ended_records import Ended

_PROCESSES = 100
_JOBS = {"v1": 77_001, "v2": 77_002}
_SPIN = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"
_NEEDED = 20
"""Processes that do not change between two readings of /proc: kernel threads are most of them."""


def load(*options: str) -> Result:
    """Load by the command; return its exit status and what it says of what is not counted."""
    command = [sys.executable, "-m", "ccagent", "kernel", "load", *options]
    done = subprocess.run(
        [*command, "--directory", DIRECTORY], capture_output=True, text=True, check=False
    )
    return {"status": done.returncode, "said": done.stderr.splitlines()}


@contextmanager
def other_processes() -> Generator[None]:
    """Have a stopped process, and one of another user with threads and memory."""
    code = """
import os, threading, time
os.setresuid(65534, 65533, 65532)
memory = bytearray(20_000_000)
for _ in range(3):
    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
open("/dev/null", "wb").write(bytes(3_000_000))
print(flush=True)
time.sleep(600)
"""
    commands = [[sys.executable, "-S", "-c", code], ["sh", "-c", "echo; kill -STOP $$"]]
    started = [subprocess.Popen(each, stdout=subprocess.PIPE) for each in commands]
    for process in started:
        assert process.stdout is not None
        process.stdout.read(1)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def compare_tasks() -> Result:
    """Return the number of processes that /proc shows unchanged, and where `tasks` differs."""
    differences: Result = {}
    with other_processes():
        files, tasks, missing = read_both()
    for pid in missing:
        differences[str(pid)] = ["there", "missing"]
    for pid, own in files.items():
        pages, counted = anonymous_pages(own), tasks[pid].anon_pages
        if abs(counted - pages) > slack_of_proc():
            differences[f"{pid} anonymous pages"] = [pages, counted]
        for name, values in unequal(values_of_proc(own), values_of_task(tasks[pid])).items():
            differences[f"{pid} {name}"] = [repr(value) for value in values]
    return {"processes": len(files), "differences": differences}


def read_both() -> tuple[dict[int, ProcFiles], dict[int, Task], set[int]]:
    """Read until enough processes did not change meanwhile, one of another user included.

    Return their files, all tasks, and the processes of /proc that are none of these.
    """
    for _ in range(100):
        before, tasks, after = read_proc(), read_tasks(DIRECTORY), read_proc()
        same = {pid: files for pid, files in before.items() if after.get(pid) == files}
        if len(same) >= _NEEDED and any(files.owner for files in same.values()):
            return same, tasks, before.keys() & after.keys() - tasks.keys()
        time.sleep(0.3)
    raise TimeoutError("processes change all the time")


def compare_ended(version: str) -> Result:
    """Return CPU time in ns of a job's short processes, and by the group's own count."""
    path, usage = {
        "v1": (f"slurm/uid_0/job_{_JOBS[version]}/step_0", "cpuacct.usage"),
        "v2": (f"system.slice/slurmstepd.scope/job_{_JOBS[version]}/step_0", "cpu.stat"),
    }[version]
    job = _JOBS[version]
    with hierarchy(version) as root:
        group = JobGroup(root, path, usage)
        group.run(f"for n in $(seq {_PROCESSES}); do ({_SPIN}); done; wait")
        used = group.runtime()
        group.remove()

    def ended() -> list[Ended]:
        return [each for key, each in read_ended(DIRECTORY).entries.items() if key.job == job]

    expected = _PROCESSES + 2  # the shell and seq
    for _ in range(100):  # a process counts when the kernel frees it
        if sum(each.processes for each in ended()) >= expected:
            break
        time.sleep(0.2)
    return {
        "processes": sum(each.processes for each in ended()),
        "expected processes": expected,
        "counted": sum(each.runtime for each in ended()),
        "used": used,
    }


def main() -> None:
    """Load, compare, and print the results as JSON, by name."""
    results: Result = {"release": os.uname().release, "load": load()}
    if not results["load"]["status"]:
        attempt(results, "tasks", compare_tasks)
        for version in ("v1", "v2"):
            attempt(results, f"ended {version}", partial(compare_ended, version))
        results["load io"] = load("--io")
        if not results["load io"]["status"]:
            with all_processors():
                results["io"] = count_known_programs()
                attempt(results["io"], "many talkers", talk_in_many_jobs)
            results["missed"] = read_io().missed
    print(json.dumps(results))


if __name__ == "__main__":
    main()
