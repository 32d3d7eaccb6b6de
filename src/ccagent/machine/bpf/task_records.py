"""Records of the pinned iterator `tasks`: one per process, with the values of /proc.

Source: struct record in tasks.bpf.c. Pids are in the initial pid namespace.
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
"""Feature: anon_pages is exact, as in statm of Linux 6.17 or later. Else it is the kernel's
approximation, as in statm of 6.2 to 6.16."""

KERNEL_THREAD = 1
WORKER = 2
WORKING = 4
INEXACT = 8
"""Flag: values are inexact; /proc or the next reading is exact. During the reading threads ended or
the program was replaced, or the process has more than 2048 threads."""


class Task(NamedTuple):
    """A process: the thread group leader, with times and I/O of all threads, including ended ones.

    ppid, pgid, sid: as in /proc/PID/stat. euid owns /proc/PID; ruid, euid, suid: Uid of status.
    flags: KERNEL_THREAD, WORKER, WORKING, INEXACT.
    num_threads: including the leader. namespace: inode of the pid namespace, 0 at level 0.
    state: as the character of /proc/PID/stat.
    start: ns since boot. runtime: ns on a CPU; utime, stime: its division by ticks in ns;
    told_*: utime and stime last read from /proc in ns. cutime, cstime: waited-for children in ns.
    anon_pages: RssAnon; data_pages: `data` of statm, including the stack.
    rchar, wchar, read_bytes, write_bytes, cancelled_write_bytes: of /proc/PID/io.
    cgroup: inode of the cgroup's directory in the unified hierarchy; cpuacct, memory, pids,
    freezer, devices: inode in the hierarchy of that controller; 0 if the kernel lacks it.
    name: comm, or a kernel thread's longer name; work: the last task of a kernel worker.
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
    """Return the header. Raise UnparsableError if a reading is incomplete or has another layout."""
    return parse_frame(content, MAGIC, LAYOUT, RECORD.size)


def raw_records(content: bytes) -> list[bytes]:
    """Split a checked reading into raw records, for comparison with the last reading's."""
    size = RECORD.size
    return [content[at : at + size] for at in range(HEADER.size, end_of(content, size), size)]


def parse_record(raw: bytes) -> Task:
    """Parse one record of RECORD.size bytes."""
    return Task._make(RECORD.unpack(raw))


def parse_tasks(content: bytes) -> Iterator[Task]:
    """Parse a reading. Raise UnparsableError immediately if it has another layout."""
    parse_header(content)
    end = end_of(content, RECORD.size)
    return map(Task._make, RECORD.iter_unpack(memoryview(content)[HEADER.size : end]))


def command(task: Task) -> bytes:
    """Return the command as in the parentheses of /proc/PID/stat.

    Source: proc_task_name() in fs/proc/array.c and wq_worker_comm() in kernel/workqueue.c.
    """
    name = task.name.partition(b"\0")[0]
    work = task.work.partition(b"\0")[0]
    if task.flags & WORKER and work:
        name += (b"+" if task.flags & WORKING else b"-") + work
    return name[:63]


def cpu_times(task: Task) -> tuple[int, int]:
    """Return user and system time without children in ns, divided as in /proc/PID/stat.

    The scheduler measures the sum; ticks only divide it. Neither part ever decreases. Source:
    cputime_adjust() in kernel/sched/cputime.c.
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
    """Return CPU time in clock ticks as in procfs, without and with waited-for children.

    The kernel truncates each of the four numbers.
    """
    tick = 1_000_000_000 // clock_ticks
    utime, stime = cpu_times(task)
    own = utime // tick + stime // tick
    return own, own + task.cutime // tick + task.cstime // tick
