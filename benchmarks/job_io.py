"""What counting the I/O of jobs costs. As root.

    python benchmarks/job_io.py [--calls 200000] [--directory DIR]
    python benchmarks/job_io.py --emulated

Where the kernel takes programs at functions: all programs are loaded into a directory of their own;

* ns a run of each program that ran, by the kernel's own statistics (kernel.bpf_stats_enabled, which
  is as it was afterwards; its clock is part of the figure);
* fio, 4 KiB reads and writes of a file in the page cache, and dd with 1 MiB, with the programs and
  without, in turns: the ratio of their CPU times, kernel time included, of the best runs.

Where it refuses them, the same work (filter, job, table, counters) runs at a tracepoint of ext4
that each buffered write passes, beside a program that does nothing: the difference is the work.
That needs clang and a directory on ext4. The way from a function into its program is not in it.

With --emulated the instructions of all that are counted, with Debian's kernel on an emulated
processor: job_io_emulated.py. They are the same on any machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.job_io_emulated import run_emulated
from benchmarks.kernel import counted_by_the_kernel, run_times
from ccagent.errors import CcagentError
from ccagent.machine.bpf import loading
from ccagent.machine.bpf.io_loading import ENTRIES, SETTINGS, IoOptions
from ccagent.machine.bpf.io_records import HOOKS, TIMERS
from ccagent.machine.bpf.libbpf import Libbpf, Object
from tests.support.io_scenarios import own_programs
from tests.support.kernel_programs import compiled, own_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    Load = Callable[[], AbstractContextManager[None]]

ROUNDS = 7

AT_A_TRACEPOINT = """
#include "io.bpf.c"

SEC("tp_btf/ext4_da_write_begin")
int BPF_PROG(at_tracepoint, struct inode *inode, __s64 position, __u32 size)
{
	struct counts *counts;

	if ((inode->i_mode & S_IFMT) != S_IFREG)
		return 0;
	counts = counts_of(inode->i_sb);
	if (!counts)
		return 0;
	add(counts->writes, 1);
	add(counts->write_bytes, size);
	return 0;
}

SEC("tp_btf/ext4_da_write_begin")
int BPF_PROG(empty, struct inode *inode)
{
	return 0;
}

#define _license unused_license
"""


@contextmanager
def at_tracepoint(*, with_empty: bool = False) -> Generator[None]:
    """Run the work of a program at a tracepoint of ext4, beside a program that does nothing."""
    library = Libbpf()
    with tempfile.TemporaryDirectory() as directory:
        content = compiled(Path(directory), AT_A_TRACEPOINT)
    with Object(library, "io", content) as programs:
        for hook in (*HOOKS, *TIMERS):
            programs.leave_out(hook.program)
        programs.set_constants(SETTINGS.pack(0, 0, 0, 0, 0, ENTRIES))
        programs.load()
        programs.attach("at_tracepoint")
        if with_empty:
            programs.attach("empty")
        yield


@contextmanager
def at_functions() -> Generator[None]:
    """Load the programs as `ccagent kernel load --io` does."""
    with own_directory() as directory:
        loading.load(directory, io=IoOptions())
        yield


def cpu_time(command: list[str], directory: str) -> tuple[float, str]:
    """Return the CPU time in s of a command, kernel time included, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=True,
        env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, done.stdout


def fio(kind: str, calls: int, directory: str) -> float:
    """Return ns of CPU time a call of 4 KiB on a file in the page cache."""
    used, _ = cpu_time(
        ["fio", "--name=f", f"--rw={kind}", "--bs=4k", "--size=16M", "--ioengine=psync",
         f"--io_size={calls * 4}k", "--overwrite=1", "--invalidate=0", "--pre_read=1",
         "--thread", "--gtod_reduce=1"],
        directory,
    )  # fmt: skip
    return used * 1e9 / calls


def dd(calls: int, directory: str) -> float:
    """Return ns of CPU time a call of 1 MiB that writes over a file in the page cache."""
    command = ["dd", "if=/dev/zero", "of=d", "bs=1M", "count=32", "conv=notrunc", "status=none"]
    return sum(cpu_time(command, directory)[0] for _ in range(calls // 32)) * 1e9 / calls


def compare(load: Load, measure: Callable[[], float]) -> tuple[float, float]:
    """Return the ratio of CPU times with the programs and without, in turns, and that without."""
    measure()
    with_them: list[float] = []
    without: list[float] = []
    for _ in range(ROUNDS):
        without.append(measure())
        with load():
            with_them.append(measure())
    # The least disturbed runs: noise only adds.
    return min(with_them) / min(without), min(without)


def are_taken() -> bool:
    """Return whether this kernel takes programs at functions."""
    before = len(own_programs())
    try:
        with at_functions():
            return len(own_programs()) - before > len(HOOKS) / 2
    except CcagentError:
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000, help="of 4 KiB, in each run")
    parser.add_argument(
        "--directory", default=tempfile.gettempdir(), help="a place to write, on ext4"
    )
    parser.add_argument("--emulated", action="store_true", help="count instructions instead")
    arguments = parser.parse_args()
    if arguments.emulated:
        run_emulated()
        return
    calls: int = arguments.calls
    load: Load = at_functions
    kinds = ["read", "write"]
    if not are_taken():
        print("at a tracepoint of ext4, because this kernel refuses programs at functions:")
        load, kinds = at_tracepoint, ["write"]
    before = set(own_programs())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        with load() if load is at_functions else at_tracepoint(with_empty=True):
            own = set(own_programs()) - before
            with counted_by_the_kernel():
                for kind in kinds:
                    fio(kind, calls, directory)
                for name, spent in sorted(run_times(own).items()):
                    print(f"{name}: {spent:.0f} ns a run, the kernel's clock included")
        for kind in kinds:
            ratio, bare = compare(load, partial(fio, kind, calls, directory))
            print(f"fio {kind} 4 KiB: {bare:.0f} ns without, {(ratio - 1) * 100:+.1f} % with")
        ratio, bare = compare(load, partial(dd, max(32, calls // 200), directory))
        print(f"dd 1 MiB: {bare / 1000:.0f} us without, {(ratio - 1) * 100:+.2f} % with")


if __name__ == "__main__":
    main()
