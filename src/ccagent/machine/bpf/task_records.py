"""Records of the pinned iterator `tasks`: one for each process, equal to /proc.

Source: struct record in tasks.bpf.c. The pids are those of the initial pid namespace.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"cctasks\n"
LAYOUT = 1
RECORD = struct.Struct("<10IHB5x21Q48s32s")

LARGEST_READING = 256 * 1024 * 1024

HAS_IO = 1
"""Feature: the kernel accounts for the I/O of tasks."""

HAS_MEMORY = 2
"""Feature: anon_pages is known."""

HAS_EXACT_MEMORY = 4
"""Feature: anon_pages is exact, as statm in Linux 6.17 or later. Else it is the kernel's
approximation, as statm in 6.2 to 6.16."""

KERNEL_THREAD = 1
WORKER = 2
WORKING = 4
INEXACT = 8
"""Flag: CPU time, I/O or memory moved during the reading (threads ended, the program was replaced),
or there are more than 2048 threads: /proc is exact, or the next reading."""


class Task(NamedTuple):
    """A process: its thread group leader, with times and I/O of all threads, ended ones too.

    ppid, pgid, sid: as in /proc/PID/stat. euid owns /proc/PID; ruid, euid, suid: Uid of status.
    flags: KERNEL_THREAD, WORKER, WORKING, INEXACT.
    num_threads: the first included. namespace: inode of the pid namespace, 0 at level 0.
    state: as the character of /proc/PID/stat.
    start: ns since boot. runtime: ns on a CPU; utime, stime: its division by ticks, ns;
    told_*: utime and stime last read from /proc, ns. cutime, cstime: waited-for children, ns.
    anon_pages: RssAnon; data_pages: `data` of statm, which holds the stack, too.
    rchar, wchar, read_bytes, write_bytes, cancelled_write_bytes: of /proc/PID/io.
    cgroup: inode of the cgroup's directory in the unified hierarchy; cpuacct, memory, pids,
    freezer, devices: of that controller, in whichever hierarchy it is; 0 for a kernel without.
    name: comm, or the kernel thread's longer name; work: the last task of a kernel worker.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    euid: int
    ruid: int
    suid: int
    flags: int
    num_threads: int
    namespace: int
    namespace_level: int
    state: int
    start: int
    runtime: int
    utime: int
    stime: int
    told_utime: int
    told_stime: int
    cutime: int
    cstime: int
    anon_pages: int
    data_pages: int
    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int
    cgroup: int
    cpuacct: int
    memory: int
    pids: int
    freezer: int
    devices: int
    name: bytes
    work: bytes


def parse_header(content: bytes) -> Header:
    """Check that a reading is complete and of this layout. Raises UnparsableError."""
    return parse_frame(content, MAGIC, LAYOUT, RECORD.size)


def raw_records(content: bytes) -> list[bytes]:
    """Cut a checked reading into records: one equal to the last reading's needs no parsing."""
    size = RECORD.size
    return [content[at : at + size] for at in range(HEADER.size, end_of(content, size), size)]


def parse_record(raw: bytes) -> Task:
    """Parse one record of RECORD.size bytes."""
    return Task._make(RECORD.unpack(raw))


def parse_tasks(content: bytes) -> Iterator[Task]:
    """Parse a whole reading. Raises UnparsableError at once if it isn't of this layout."""
    parse_header(content)
    end = end_of(content, RECORD.size)
    return map(Task._make, RECORD.iter_unpack(memoryview(content)[HEADER.size : end]))


def command(task: Task) -> bytes:
    """Return the command as between the parentheses of /proc/PID/stat.

    Source: proc_task_name() in fs/proc/array.c and wq_worker_comm() in kernel/workqueue.c.
    """
    name = task.name.partition(b"\0")[0]
    work = task.work.partition(b"\0")[0]
    if task.flags & WORKER and work:
        name += (b"+" if task.flags & WORKING else b"-") + work
    return name[:63]


def cpu_times(task: Task) -> tuple[int, int]:
    """Return user and system time without children in ns, divided as in /proc/PID/stat.

    The sum is measured by the scheduler; ticks only divide it, and neither part ever
    decreases. Source: cputime_adjust() in kernel/sched/cputime.c.
    """
    runtime, utime, stime, told_utime, told_stime = task[13:18]
    if told_utime + told_stime >= runtime:
        return told_utime, told_stime
    if stime:
        stime = stime * runtime // (stime + utime)
    stime = max(stime, told_stime)
    utime = runtime - stime
    if utime < told_utime:
        return told_utime, runtime - told_utime
    return utime, stime


def ticks(task: Task, clock_ticks: int) -> tuple[int, int]:
    """Return CPU time in clock ticks as in procfs: without, and with waited-for children.

    The kernel truncates each of the four numbers.
    """
    tick = 1_000_000_000 // clock_ticks
    utime, stime = cpu_times(task)
    own = utime // tick + stime // tick
    return own, own + task.cutime // tick + task.cstime // tick
