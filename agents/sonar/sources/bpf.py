"""The process source `bpf`: all processes in one read of the pinned iterator.

See kernel/README.md for the program. What it gives equals /proc, so that this source gives the
records that `procfs` does; I/O of other users' processes needs no privilege here. A record whose
bytes are those of the reading before needs no work.

The cgroup is read from /proc when a process is first seen, at the reading after that, and when
its cgroup, parent, group, session, owner or command has changed, which its record tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.attribution import EVERY, ZOMBIE, Placer
from ccagent.agents.sonar.jobs.cgroup_ids import CgroupPlaces
from ccagent.agents.sonar.jobs.ended import EndedProcesses
from ccagent.agents.sonar.process import Process, utilization
from ccagent.agents.sonar.sources.complaints import Complaints
from ccagent.agents.sonar.sources.entry import Entry, make_process
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.task_records import (
    INEXACT,
    LARGEST_READING,
    Task,
    command,
    parse_header,
    parse_record,
    raw_records,
    ticks,
)
from ccagent.machine.bpf.task_records import KERNEL_THREAD as IS_KERNEL_THREAD
from ccagent.machine.procfs.process_files import (
    KERNEL_THREAD,
    Io,
    Stat,
    Statm,
    parse_stat,
    parse_statm,
)
from ccagent.records.envelopes import NO_FLOAT

if TYPE_CHECKING:
    from ccagent.agents.sonar.jobs.selection import Selection
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_cgroup import Placement

_SECOND = 1_000_000_000
_NEVER = 1 << 62
_PLACE = slice(1, 7)
_CGROUPS = slice(27, 33)
"""Fields of a Task: ppid to suid; the ids of cgroups."""


class TaskEntry(Entry):
    """A process, as the iterator told of it last. raw: its record, `task` parsed."""

    __slots__ = ("raw", "task")

    def __init__(self, name: str, status: Stat, task: Task, raw: bytes) -> None:
        super().__init__(name, status)
        self.task = task
        self.raw = raw


class BpfSource:
    """All wanted processes that the iterator tells. See the module.

    Every method raises CcagentError when the pinned file is no longer there, can't be read, or is
    of another version; NotHereError also in a pid namespace of its own, whose pids are others.
    """

    name = "bpf"

    def __init__(self, node: Node, selection: Selection, directory: str = pins.DIRECTORY) -> None:
        self._node = node
        self._selection = selection
        self._path = f"{directory.lstrip('/')}/{pins.TASKS}"
        self._order: list[TaskEntry] = []
        self._by_name: dict[str, TaskEntry] = {}
        self._reading = 0
        self._read_at = 0.0
        self._complaints = Complaints()
        self._placer = Placer(node, selection, self._by_name, self._complaints)
        self._places = CgroupPlaces(node)
        self._ended = EndedProcesses(node, selection, f"{directory.lstrip('/')}/{pins.ENDED}")
        if node.is_live and node.inode("proc/self/ns/pid") != pins.FIRST_PID_NAMESPACE:
            raise NotHereError("the pids of this pid namespace are not the kernel's")

    @property
    def counts_ended(self) -> bool:
        """Return whether the last reading had what processes used that have ended."""
        return self._ended.is_counting

    @property
    def errors(self) -> list[str]:
        """What could not be read or parsed at the last reading, a sentence each."""
        return self._complaints.errors

    def begin(self) -> None:
        """Remember the CPU time that each process has used."""
        self.read()
        for entry in self._order:
            if entry.place_at != _NEVER:
                entry.place_at += 1  # the sample that follows at once need not look again

    def read(self) -> list[Process]:
        """Read all wanted processes, and what ended ones used since the reading before."""
        self._complaints.begin_reading()
        # In this order no process is both among the ended and the living.
        self._ended.read(self.errors)
        content = self._node.read(self._path, LARGEST_READING)
        parse_header(content)
        self._reading += 1
        before, self._read_at = self._read_at, self._node.clock.monotonic()
        seconds = self._read_at - before if self._reading > 1 else 0.0
        known, fresh, gone = self._take(raw_records(content), seconds)
        processes = known + self._admit(fresh, gone, seconds)
        if self._placer.asks_ancestors:
            there = (*gone, *self._order)
            self._places.descents = {each.task.pgid: each.descent for each in there}
        gone_from = [(entry.task, self._left(entry)) for entry in gone]
        processes += self._ended.records(gone_from, self._places.of_ended, seconds, self.errors)
        return processes

    def _take(
        self, raws: list[bytes], seconds: float
    ) -> tuple[list[Process], list[TaskEntry], list[TaskEntry]]:
        """Take a reading over: give processes that were known, and which are new and gone."""
        reading, order = self._reading, self._order
        processes: list[Process] = []
        fresh: list[TaskEntry] = []
        now: list[TaskEntry] = []
        at, last = 0, len(order)
        for raw in raws:
            # The kernel goes by pid, so that most are where they were.
            if at < last:
                entry = order[at]
                if raw == entry.raw and reading < entry.place_at:
                    process = entry.process
                    if process is None or not process.cpu_util:
                        # The process slept.
                        now.append(entry)
                        at += 1
                        if process is not None:
                            processes.append(process)
                        continue
            task = parse_record(raw)
            name = str(task.pid)
            known = self._by_name.get(name)
            if known is None or task.start != known.task.start:
                entry = TaskEntry(name, self._status(task), task, raw)
                fresh.append(entry)
            else:
                entry = known
                self._advance(entry, task, raw, seconds)
                if entry.process is not None:
                    processes.append(entry.process)
                while at < last and order[at] is not entry:
                    at += 1
                at += 1
            now.append(entry)
        self._order = now
        gone: list[TaskEntry] = []
        if len(now) - len(fresh) < last:
            there = set(map(id, now))
            gone = [entry for entry in order if id(entry) not in there]
        return processes, fresh, gone

    def close(self) -> None:
        """Hold nothing open."""

    def _admit(
        self, fresh: list[TaskEntry], gone: list[TaskEntry], seconds: float
    ) -> list[Process]:
        """Take over processes that were not known, and forget those that are gone."""
        for entry in gone:
            del self._by_name[entry.name]
        for entry in fresh:
            self._by_name[entry.name] = entry
        # Only now that parents are known can it be told who descends from a supervisor.
        for entry in fresh:
            self._place(entry)
            entry.place_at = self._reading + 1
        processes: list[Process] = []
        for entry in fresh:
            self._make(entry, self._first_use(entry, seconds))
            if entry.process is not None:
                processes.append(entry.process)
        return processes

    def _first_use(self, entry: TaskEntry, seconds: float) -> float:
        """Give what a process used that began since the previous reading, in percent of a core."""
        if not seconds:
            return NO_FLOAT
        age = self._node.clock.uptime() - entry.task.start / _SECOND
        return utilization(entry.status.own_ticks, max(seconds, age), self._node.clock_ticks)

    def _advance(self, entry: TaskEntry, task: Task, raw: bytes, seconds: float) -> None:
        """Take over a new record of a known process."""
        before, status_before = entry.task, entry.status
        status = self._status(task)
        entry.task, entry.raw, entry.status = task, raw, status
        if (
            self._reading >= entry.place_at
            or task[_PLACE] != before[_PLACE]
            or task[_CGROUPS] != before[_CGROUPS]
            # The names of kernel workers change with their work; their owner and cgroup never do.
            or (task.name != before.name and not task.flags & IS_KERNEL_THREAD)
        ):
            self._place(entry)
        used = status.own_ticks - status_before.own_ticks
        self._make(entry, utilization(used, seconds, self._node.clock_ticks))

    def _make(self, entry: TaskEntry, used: float) -> None:
        """Build the record of a process; None if it isn't wanted."""
        task, status = entry.task, entry.status
        least_ticks = self._selection.cpu_time * self._node.clock_ticks
        if not entry.wanted or status.all_ticks < least_ticks or status.state in b"Xx":
            entry.process = None
            return
        memory = Statm(task.anon_pages, task.data_pages)
        if task.flags & INEXACT:
            memory = self._exact_memory(entry.name, memory)
        if self._selection.storage_io:
            io = Io(task.read_bytes, task.write_bytes, task.cancelled_write_bytes)
        else:
            io = Io(task.rchar, task.wchar, task.cancelled_write_bytes)
        process = make_process(entry, used, memory, io, self._node)
        if process != entry.process:
            entry.process = process

    def _status(self, task: Task) -> Stat:
        """Give what /proc/PID/stat has of the same process."""
        hertz = self._node.clock_ticks
        own, with_children = ticks(task, hertz)
        if task.flags & INEXACT:
            try:
                told = parse_stat(self._node.read_single(f"proc/{task.pid}/stat"))
                own, with_children = told.own_ticks, told.all_ticks
            except CcagentError:
                pass  # the next reading tells
        return Stat(
            command=command(task),
            state=bytes((task.state,)),
            ppid=task.ppid,
            process_group=task.pgid,
            session=task.sid,
            flags=KERNEL_THREAD if task.flags & IS_KERNEL_THREAD else 0,
            own_ticks=own,
            all_ticks=with_children,
            num_threads=task.num_threads,
            starttime=task.start * hertz // _SECOND,
        )

    def _exact_memory(self, name: str, memory: Statm) -> Statm:
        try:
            return parse_statm(self._node.read_single(f"proc/{name}/statm"))
        except CcagentError:
            return memory

    def _place(self, entry: TaskEntry) -> None:
        """Find out job and container."""
        task = entry.task
        if entry.place_at and entry.status.state == ZOMBIE:
            entry.place_at = _NEVER
            return
        entry.uid = task.euid
        try:
            placement = self._placer.read(f"proc/{entry.name}")
        except CcagentError:
            # It has ended meanwhile, or /proc hides it (hidepid).
            placement = self._places.of_task(task)
        else:
            placement = self._places.learned(task, placement)
        self._placer.settle(entry, placement)
        # Ancestors may tell more later; of all else the record tells when it changes.
        asks = self._placer.asks_ancestors
        entry.place_at = self._reading + EVERY if asks else _NEVER

    def _left(self, entry: TaskEntry) -> Placement:
        """Tell where a process was that is gone, as the kernel will tell of it."""
        placement = self._places.of_task(entry.task)
        return placement if placement.job else placement._replace(job=entry.descent)
