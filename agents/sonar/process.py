"""One process at one reading, made of the files of /proc, and the sources of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from ccagent.machine.procfs.process_files import command_text
from ccagent.records.envelopes import NO_FLOAT

if TYPE_CHECKING:
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import Io, ProcessStat, Statm

FIRST_PID_OF_ENDED = 2**30
"""Pids from here on are of records of ended processes: real ones are below 2**22."""

UNKNOWN_USER = "_user_unknown"
"""Owner of processes whose user can't be found out."""

ENDED = " <ended>"
"""Stands behind the command of a record of ended processes."""


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process at one reading. A source returns the same object while nothing has changed.

    job: Slurm's raw job id, 0 outside of Slurm.
    start_time, cpu_seconds: seconds after boot; user and system time without children.
    cpu_time: seconds, waited-for children included, rounded.
    cpu_util: percent of one core since the previous reading.
    resident_memory, virtual_memory, data_*: KB.
    num_threads: threads besides the first.
    rolledup: how many processes this stands for besides one.
    is_ended: it stands for processes that have ended. Then cpu_seconds is what they used since the
    previous reading, start_time and cpu_time are 0, and the pid is above all that are real.
    A field with a default is one that a source may not know.
    """

    pid: int
    ppid: int
    process_group: int
    job: int
    uid: int
    command: str
    in_container: bool
    start_time: float = 0.0
    cpu_seconds: float = 0.0
    cpu_time: int = 0
    cpu_util: float = NO_FLOAT
    resident_memory: int = 0
    virtual_memory: int = 0
    num_threads: int = 0
    data_read: int = 0
    data_written: int = 0
    data_cancelled: int = 0
    rolledup: int = 0
    is_ended: bool = False


class ProcessEntry:
    """One process, and what follows from its files.

    status: /proc/PID/stat, as it was at `read_at` (monotonic seconds).
    attribute_at: number of the next reading that looks up job and container.
    descent: the Slurm job that its ancestors named, even if they have ended since; 0 for none.
    """

    __slots__ = (
        "attribute_at", "descent", "in_container", "job", "name", "process", "read_at", "status",
        "uid", "wanted",
    )  # fmt: skip

    def __init__(self, name: str, status: ProcessStat) -> None:
        self.name = name
        self.status = status
        self.read_at = 0.0
        self.attribute_at = 0
        self.uid = 0
        self.job = 0
        self.descent = 0
        self.in_container = False
        self.wanted = True
        self.process: Process | None = None


def make_process(entry: ProcessEntry, used: float, memory: Statm, io: Io, node: Node) -> Process:
    """Return the process of an entry whose job is known; used: percent of one core."""
    stat = entry.status
    ticks, page = node.clock_ticks, node.page_size
    return Process(
        pid=int(entry.name),
        ppid=stat.ppid,
        process_group=stat.process_group,
        job=entry.job,
        uid=entry.uid,
        command=command_text(stat.command, stat.state),
        in_container=entry.in_container,
        start_time=stat.starttime / ticks,
        cpu_seconds=stat.own_ticks / ticks,
        cpu_time=(stat.all_ticks + ticks // 2) // ticks,
        cpu_util=used,
        resident_memory=memory.private * page // 1024,
        virtual_memory=memory.data * page // 1024,
        num_threads=max(0, stat.num_threads - 1),
        data_read=kilobytes(io.read),
        data_written=kilobytes(io.written),
        data_cancelled=kilobytes(io.cancelled),
    )


class ProcessSource(Protocol):
    """A reader of all processes that the selection wants."""

    @property
    def name(self) -> str:
        """Return the name that the configuration has for it."""
        ...

    @property
    def counts_ended(self) -> bool:
        """Return whether the last reading had what processes used that have ended."""
        ...

    @property
    def errors(self) -> list[str]:
        """Return what could not be read or parsed at the last reading, a sentence each."""
        ...

    def begin(self) -> None:
        """Take a first reading of CPU times, from which the next `read` counts."""
        ...

    def read(self) -> list[Process]:
        """Read all wanted processes. Those that end meanwhile are omitted without an error."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


def utilization(ticks: int, seconds: float, clock_ticks: int) -> float:
    """Return the percentage of one core that `ticks` are of `seconds`; never negative."""
    if ticks <= 0 or seconds <= 0:
        return NO_FLOAT
    return round(100.0 * ticks / clock_ticks / seconds, 3) or NO_FLOAT


def first_utilization(node: Node, start: float, own_ticks: int, seconds: float) -> float:
    """Return the utilization of a process by its first reading, in percent of a core.

    start: seconds after boot. seconds: since the previous reading; 0 if there was none. For an
    older process, which could not be read before, the result is the mean over its life.
    """
    if not seconds:
        return NO_FLOAT
    age = node.clock.uptime() - start
    return utilization(own_ticks, max(seconds, age), node.clock_ticks)


def kilobytes(size: int) -> int:
    """Return bytes as KB, rounded up."""
    return -(-size // 1024)
