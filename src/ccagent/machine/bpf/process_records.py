"""Records of the pinned iterators `tasks`, one per process, and `ended`, sums over ended processes.

Those of `tasks` have the values of /proc. Pids are in the initial pid namespace.

Those of `ended` are sums by job, user and command: counters that only increase while the programs
are loaded, so that a reader computes deltas of two readings. Each reading has the entries changed
since one second before the previous reading. An entry is removed if it has not changed for `kept`
ns, or earlier if the table is full. A removed key starts again at 0 with a new `since`. `Total`
counts all processes: the excess of its delta over the sum of the entries' deltas was removed
unread.

Source: struct record in tasks.bpf.c and in ended.bpf.c.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS_MAGIC = b"cctasks\n"
TASKS_LAYOUT = 1
TASK_RECORD = struct.Struct("<10IHB5x21Q48s32s")

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

ENDED_MAGIC = b"ccexits\n"
ENDED_LAYOUT = 3
ENDED_RECORD = struct.Struct("<QQIIII16s10Q")

_KEY = struct.Struct("<QQIIII16s")
_COUNTERS = struct.Struct("<48s2Q48x2Q")
_TOTAL = struct.Struct("<48s10Q")


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
    return parse_frame(content, TASKS_MAGIC, TASKS_LAYOUT, TASK_RECORD.size)


def raw_records(content: bytes) -> list[bytes]:
    """Split a checked reading into raw records, for comparison with the last reading's."""
    size = TASK_RECORD.size
    return [content[at : at + size] for at in range(HEADER.size, end_of(content, size), size)]


def parse_record(raw: bytes) -> Task:
    """Parse one record of TASK_RECORD.size bytes."""
    return Task._make(TASK_RECORD.unpack(raw))


def parse_tasks(content: bytes) -> Iterator[Task]:
    """Parse a reading. Raise UnparsableError immediately if it has another layout."""
    parse_header(content)
    end = end_of(content, TASK_RECORD.size)
    return map(Task._make, TASK_RECORD.iter_unpack(memoryview(content)[HEADER.size : end]))


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


RawEntry = tuple[bytes, int, int, int, int]
"""The bytes of a key, and sums over its processes: their number, ns on a CPU, and the creation and
last change of the entry in ns since boot."""


class EndedKey(NamedTuple):
    """Owner of the processes at their exit.

    cgroup, cpuacct: as in `Task`; cgroup: the job's if its number was not known. job:
    Slurm's job id. For a process in a job cgroup, cpuacct and pgid are 0. pgid: also 0 if unknown,
    and for a process with less than 100 ms CPU time whose group leader did not exist at the last
    reading. euid: effective user. is_slurms_own: slurmstepd or its placeholder in the step extern;
    then cgroup, cpuacct and job are 0. command: comm.
    """

    cgroup: int
    cpuacct: int
    job: int
    pgid: int
    euid: int
    is_slurms_own: int
    command: bytes


class Total(NamedTuple):
    """Sums over all processes that ended since the programs were loaded, without their children.

    runtime: ns on a CPU. *_bytes, rchar, wchar: bytes. max_pages: the maximum over the processes.
    entries, refused: number of created entries, and of entries that could not be created.
    processes: at the start of the reading; entries may include later processes.
    """

    processes: int
    runtime: int
    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int
    max_pages: int
    entries: int
    refused: int


class RawEndedReading(NamedTuple):
    """One reading. Its entries are only parsed as far as needed to detect changes.

    kept: ns after which the kernel removes an unchanged entry. unseen: number of processes counted
    with their values at exit, because their release was not observed.
    """

    header: Header
    entries: Iterator[RawEntry]
    total: Total
    kept: int
    unseen: int


def parse_raw(content: bytes) -> RawEndedReading:
    """Parse a reading. Raise UnparsableError if it is incomplete or has another layout."""
    header = parse_frame(content, ENDED_MAGIC, ENDED_LAYOUT, ENDED_RECORD.size)
    end = end_of(content, ENDED_RECORD.size)
    last = end - ENDED_RECORD.size
    if last < HEADER.size:
        raise UnparsableError("there is no total")
    key, *total = _TOTAL.unpack_from(content, last)
    if any(key):
        raise UnparsableError("there is no total")
    entries: Iterator[RawEntry] = _COUNTERS.iter_unpack(memoryview(content)[HEADER.size : last])
    unseen = Header._make(HEADER.unpack_from(content, end)).features
    return RawEndedReading(header, entries, Total._make(total), header.features, unseen)


def parse_key(raw: bytes) -> EndedKey:
    """Parse the key of a RawEntry."""
    fields = _KEY.unpack(raw)
    return EndedKey._make((*fields[:6], fields[6].partition(b"\0")[0]))
