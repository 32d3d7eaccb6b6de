"""Entries: what process sources keep of one process between readings, and records made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.process import Process, kilobytes
from ccagent.machine.descriptors import CLOSED
from ccagent.machine.procfs.process_files import command_text

if TYPE_CHECKING:
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import Io, Stat, Statm


class Entry:
    """One process, and what follows from it.

    status: what /proc/PID/stat tells, as it was at `read_at` (monotonic seconds).
    place_at: number of the reading that looks at its place next.
    descent: the Slurm job that its ancestors told, whatever became of them; 0 for none.
    """

    __slots__ = (
        "descent", "in_container", "job", "name", "place_at", "process", "read_at", "status", "uid",
        "wanted",
    )  # fmt: skip

    def __init__(self, name: str, status: Stat) -> None:
        self.name = name
        self.status = status
        self.read_at = 0.0
        self.place_at = 0
        self.uid = 0
        self.job = 0
        self.descent = 0
        self.in_container = False
        self.wanted = True
        self.process: Process | None = None


class FileEntry(Entry):
    """What the source `procfs` keeps.

    stat, statm, io: descriptors, or CLOSED or UNUSED; *_raw: what was read last. seen: number of
    the last reading that saw it.
    """

    __slots__ = ("io", "io_raw", "seen", "stat", "stat_raw", "statm", "statm_raw")

    def __init__(self, name: str, status: Stat, stat_raw: bytes, stat: int) -> None:
        super().__init__(name, status)
        self.stat_raw = stat_raw
        self.stat = stat
        self.statm = self.io = CLOSED
        self.statm_raw = self.io_raw = b""
        self.seen = 0

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """The three files: descriptors, or CLOSED or UNUSED."""
        return self.stat, self.statm, self.io

    def forget_descriptors(self) -> None:
        """Take note that the files are closed and have to be opened for each reading."""
        self.stat, self.statm, self.io = (
            min(descriptor, CLOSED) for descriptor in self.descriptors
        )


def make_process(entry: Entry, used: float, memory: Statm, io: Io, node: Node) -> Process:
    """Make the record of a process whose place is known; used: percent of one core."""
    status = entry.status
    ticks, page = node.clock_ticks, node.page_size
    return Process(
        pid=int(entry.name),
        ppid=status.ppid,
        process_group=status.process_group,
        job=entry.job,
        uid=entry.uid,
        command=command_text(status.command, status.state),
        in_container=entry.in_container,
        start_time=status.starttime / ticks,
        cpu_seconds=status.own_ticks / ticks,
        cpu_time=(status.all_ticks + ticks // 2) // ticks,
        cpu_util=used,
        resident_memory=memory.private * page // 1024,
        virtual_memory=memory.data * page // 1024,
        num_threads=max(0, status.num_threads - 1),
        data_read=kilobytes(io.read),
        data_written=kilobytes(io.written),
        data_cancelled=kilobytes(io.cancelled),
    )
