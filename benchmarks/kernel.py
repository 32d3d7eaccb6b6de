"""What the programs in the kernel cost: reading all processes, and a process that ends. As root.

    python benchmarks/kernel.py [--processes 1000]

Loads them into a directory of their own, beside those that may be loaded.

* reading: CPU of the reader, kernel included, for each process, with N sleeping ones: the bytes
  alone, and parsed;
* ending: what the kernel measures of the two programs that an ending process runs
  (kernel.bpf_stats_enabled, which is as it was afterwards), over 2000 of them in a group of a job.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from ctypes import CDLL, byref, c_uint32, create_string_buffer
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.sample import sleeping_processes
from ccagent.machine.bpf import loading, pins
from ccagent.machine.bpf.process_records import parse_tasks
from tests.support.kernel_programs import NODE, JobGroup, hierarchy, own_directory, program_ids

if TYPE_CHECKING:
    from collections.abc import Generator

READINGS = 100
ENDED = 2000
_COUNTERS = ("run_time_ns", "run_cnt")
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def reading_cost(directory: str) -> tuple[int, float, float]:
    """Return the number of processes, and us of CPU for each: read, and read and parsed."""
    path = f"{directory}/{pins.TASKS}".lstrip("/")
    number = sum(1 for _ in parse_tasks(NODE.read(path, 1 << 28)))
    begin = time.process_time()
    for _ in range(READINGS):
        NODE.read(path, 1 << 28)
    middle = time.process_time()
    for _ in range(READINGS):
        list(parse_tasks(NODE.read(path, 1 << 28)))
    end = time.process_time()
    each = 1e6 / READINGS / number
    return number, (middle - begin) * each, (end - middle) * each


@contextmanager
def counted_by_the_kernel() -> Generator[None]:
    """Have the kernel measure all BPF programs."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


def run_time(program: int) -> tuple[int, int]:
    """Return ns and runs of a program."""
    descriptor = CDLL("libbpf.so.1").bpf_prog_get_fd_by_id(program)
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    os.close(descriptor)
    spent, runs = (int(re.findall(rf"{each}:\s+(\d+)", text)[0]) for each in _COUNTERS)
    return spent, runs


def run_times(own: set[int], *, least: int = 1000) -> dict[str, float]:
    """Return ns a run of those programs that ran, by name. least: how often."""
    found: dict[str, float] = {}
    for program in own:
        spent, runs = run_time(program)
        if runs > least:
            found[program_name(program)] = spent / runs
    return found


def program_name(program: int) -> str:
    """Return the first 15 letters of a program's name, by its number."""
    library = CDLL("libbpf.so.1")
    information, size = create_string_buffer(80), c_uint32(80)
    descriptor = library.bpf_prog_get_fd_by_id(program)
    library.bpf_obj_get_info_by_fd(descriptor, information, byref(size))
    os.close(descriptor)
    return information.raw[64:].partition(b"\0")[0].decode()  # struct bpf_prog_info


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1000)
    processes: int = parser.parse_args().processes
    with own_directory() as directory:
        loading.load(directory)
        with sleeping_processes(processes):
            number, read, parsed = reading_cost(directory)
        print(f"{number} processes: {read:.2f} us each to read, {parsed:.2f} us with parsing")
        with counted_by_the_kernel(), hierarchy("v2") as root:
            group = JobGroup(root, "system.slice/bench_slurmstepd.scope/job_1/step_0", "cpu.stat")
            group.run(f"for n in $(seq {ENDED}); do (:); done")
            group.remove()
            _, _, *programs = program_ids(directory)
            for name, program in zip((pins.ON_EXIT, pins.ON_FREE), programs, strict=True):
                spent, runs = run_time(program)
                print(f"{name}: {spent / runs:.0f} ns a run, {runs} runs")
    begin = time.monotonic()
    subprocess.run(["sh", "-c", f"for n in $(seq {ENDED}); do (:); done"], check=True)
    print(f"a process of a shell: {(time.monotonic() - begin) / ENDED * 1e6:.0f} us")


if __name__ == "__main__":
    main()
