"""One process at one reading, its owner and selection, and the base of process sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.log import logger
from ccagent.machine.procfs.process_files import Io, ProcessStat, Statm, command_text
from ccagent.records.envelopes import NO_FLOAT, SampleProcess, SampleProcessGpu

if TYPE_CHECKING:
    from ccagent.machine.node import Node

FIRST_PID_OF_ENDED = 2**30
"""First synthetic pid for records of ended processes; real pids are below 2**22."""

UNKNOWN_USER = "_user_unknown"
"""Owner of processes with an unknown user."""

ENDED = " <ended>"
"""Suffix of the command in records of ended processes."""

FIRST_USER = 1000
"""User ids below this belong to the system (UID_MIN in the distributions' /etc/login.defs)."""


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process at one reading. A source returns the same object while nothing has changed.

    job: Slurm's raw job id, 0 outside of Slurm.
    start_time: seconds after boot.
    cpu_seconds: user and system time without children.
    cpu_time: rounded seconds, including waited-for children.
    cpu_util: percent of one core since the previous reading.
    resident_memory, virtual_memory, data_*: KB.
    num_threads: threads besides the first.
    rolledup: number of further processes in this record.
    is_ended: this is a record of ended processes. Then cpu_seconds is their CPU time since the
    previous reading, start_time and cpu_time are 0, and the pid is above all real pids.
    A source may lack the fields with a default.
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


class OwnerGroup(NamedTuple):
    """Owner of ended processes with shared records.

    group: process group outside of jobs; 0 in jobs, and for groups without separate records.
    """

    job: int
    group: int
    uid: int


class ProcessEntry(msgspec.Struct, eq=False):
    """One process, and the values derived from its files.

    status: /proc/PID/stat at `read_at` (monotonic seconds).
    attribute_at: number of the next reading that looks up job and container.
    contained_as: command with which the process was last looked up in containers.
    descent: the Slurm job found through ancestors, even if they have ended since; 0 for none.
    """

    name: str
    status: ProcessStat
    read_at: float = 0.0
    attribute_at: int = 0
    uid: int = 0
    job: int = 0
    descent: int = 0
    in_container: bool = False
    contained_as: bytes | None = None
    wanted: bool = True
    process: Process | None = None


def make_process(entry: ProcessEntry, used: float, memory: Statm, io: Io, node: Node) -> Process:
    """Return the process of an attributed entry. used: percent of one core."""
    stat = entry.status
    ticks, page = node.clock_ticks, node.page_size
    read, written, cancelled = (-(-size // 1024) for size in io)  # rounded up
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
        data_read=read,
        data_written=written,
        data_cancelled=cancelled,
    )


def make_record(process: Process, average: float, gpus: list[SampleProcessGpu]) -> SampleProcess:
    """Return the record of a process. average: percent of one core over its life."""
    return SampleProcess(
        resident_memory=process.resident_memory,
        virtual_memory=process.virtual_memory,
        cmd=process.command,
        pid=process.pid,
        ppid=process.ppid,
        in_container=process.in_container,
        num_threads=process.num_threads,
        cpu_avg=average,
        cpu_util=process.cpu_util or NO_FLOAT,
        cpu_time=process.cpu_time,
        data_read=process.data_read,
        data_written=process.data_written,
        data_cancelled=process.data_cancelled,
        rolledup=process.rolledup,
        gpus=gpus,
    )


class ProcessSource(ABC):
    """A reader of all processes that the selection admits.

    name: the source in the configuration. counts_ended: the last reading included the CPU time of
    ended processes. errors: of the last reading, one sentence each.
    """

    name: str
    counts_ended: bool = False

    def __init__(self) -> None:
        self.errors = ProcessErrors()

    @abstractmethod
    def begin(self) -> None:
        """Take a first reading of CPU times; the next `read` returns utilisation since then."""

    @abstractmethod
    def read(self) -> list[Process]:
        """Return all wanted processes. Omit processes that end meanwhile, without an error."""

    def close(self) -> None:  # noqa: B027 - only some sources keep files open
        """Close all open files."""


def utilization(ticks: int, seconds: float, clock_ticks: int) -> float:
    """Return `ticks` of CPU time in `seconds` as a percentage of one core; never negative."""
    if ticks <= 0 or seconds <= 0:
        return NO_FLOAT
    return round(100.0 * ticks / clock_ticks / seconds, 3) or NO_FLOAT


def first_utilization(node: Node, start: float, own_ticks: int, seconds: float) -> float:
    """Return the utilisation of a process at its first reading, in percent of one core.

    start: seconds after boot. seconds: since the previous reading; 0 if there was none. For an
    older process that could not be read before, return the mean over its life.
    """
    if not seconds:
        return NO_FLOAT
    age = node.clock.uptime() - start
    return utilization(own_ticks, max(seconds, age), node.clock_ticks)


class ProcessSelection:
    """Filters by owner and command. These are read first: an excluded process costs little.

    system_jobs: False excludes processes of system users outside of containers.
    users: names of users to exclude; commands: beginnings of command names to exclude.
    cpu_time: minimum CPU time in seconds.
    storage_io: data read and written are bytes of storage instead of read and write calls.
    """

    def __init__(
        self,
        *,
        system_jobs: bool = True,
        users: tuple[str, ...] = (),
        commands: tuple[str, ...] = (),
        cpu_time: float = 0.0,
        storage_io: bool = False,
    ) -> None:
        self.cpu_time = cpu_time
        self.storage_io = storage_io
        self._system_jobs = system_jobs
        self._users = frozenset(users)
        self._commands = tuple(command for command in commands if command)

    def wants(self, node: Node, uid: int, command: str, *, in_container: bool) -> bool:
        """Return whether the filters by owner and command admit a process."""
        if not self._system_jobs and uid < FIRST_USER and not in_container:
            return False
        if self._commands and command.startswith(self._commands):
            return False
        return not (self._users and node.user(uid) in self._users)


class ProcessErrors(list[str]):
    """The errors of one reading, for the envelope. The source clears them before the next."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[str] = set()

    def add(self, path: str, error: Exception) -> None:
        """Add an error, prefixed by the path unless it already is."""
        text = (isinstance(error, OSError) and error.strerror) or str(error)
        self.append(text if text.startswith(path) else f"{path}: {text}")

    def log_once(self, key: str, text: str, node: Node | None = None, *needed: str) -> None:
        """Log a missing permission once, because it does not change between samples.

        node, needed: the log also names those of these capabilities that this process lacks.
        """
        if key in self._logged:
            return
        self._logged.add(key)
        if node is not None:
            from ccagent.machine.parsed import read_lack

            text += f": {read_lack(node, *needed)}"
        logger.warning("%s", text)
