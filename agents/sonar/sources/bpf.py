"""The process source `bpf`: all processes in one read of the pinned iterator.

See ccagent/machine/bpf/README.md for the program. Its records equal /proc, so this source returns
the same processes as `procfs`. I/O of other users' processes needs no privilege here. A record with
unchanged bytes is not parsed.

The cgroup is read from /proc when a process first appears, at the next reading, and when the record
shows a new cgroup, parent, group, session, owner or command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.attribution import EVERY, ZOMBIE, ProcessAttribution
from ccagent.agents.sonar.jobs.ended import EndedProcesses
from ccagent.agents.sonar.process import (
    Process,
    ProcessEntry,
    ProcessSource,
    first_utilization,
    make_process,
    utilization,
)
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.process_records import (
    INEXACT,
    LARGEST_READING,
    Task,
    command,
    parse_header,
    parse_record,
    raw_records,
    ticks,
)
from ccagent.machine.bpf.process_records import KERNEL_THREAD as IS_KERNEL_THREAD
from ccagent.machine.cgroup.files import JobInodes
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP, CgroupMembership
from ccagent.machine.procfs.process_files import (
    KERNEL_THREAD,
    Io,
    ProcessStat,
    Statm,
    parse_stat,
    parse_statm,
)

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.machine.bpf.process_records import EndedKey
    from ccagent.machine.node import Node

_ROOT = 1
"""The id of the cgroup at the root of a hierarchy."""

_MOST = 10_000
_SECOND = 1_000_000_000
_NEVER = 1 << 62
_OWNERS = slice(1, 7)

_CGROUPS = slice(27, 33)
"""Slices of the fields of a Task: ppid to suid, and the cgroup ids."""


class CgroupMemberships:
    """Job memberships by cgroup id: from earlier reads of /proc, else from the cgroup file system.

    An id is the inode number of the cgroup's directory, as in the kernel's records.
    descents: by process group, the job found through ancestors; 0 for none.
    """

    def __init__(self, node: Node) -> None:
        self.descents: dict[int, int] = {}
        self._node = node
        self._seen: dict[tuple[int, int], CgroupMembership | None] = {}
        self._inodes = JobInodes()

    def learn(self, task: Task, membership: CgroupMembership) -> CgroupMembership:
        """Remember the membership read from /proc; return it, or a more specific one if known.

        With cgroup v1, a process that has exited reads as outside of jobs. A cgroup with processes
        of several memberships is ignored: the job is in another controller's path.
        """
        if membership == NO_MEMBERSHIP:
            better = self.for_task(task)
            if better.job:
                return better
        if membership.is_unknown:
            return membership
        if len(self._seen) >= _MOST:
            self._seen.clear()
        cgroups = (task.cgroup, task.cpuacct)
        known = self._seen.setdefault(cgroups, membership)
        if known is not None and known != membership:
            self._seen[cgroups] = None
        return membership

    def for_task(self, task: Task) -> CgroupMembership:
        """Return the membership of a process whose files can't be read."""
        return self._of(task.cgroup, task.cpuacct, task.memory)

    def for_ended(self, key: EndedKey) -> CgroupMembership:
        """Return the membership of ended processes that the kernel has summed up."""
        if key.is_slurms_own:
            return NO_MEMBERSHIP
        if key.job:
            return CgroupMembership(key.job, "")
        membership = self._of(key.cgroup, key.cpuacct)
        if membership.job:
            return membership
        return membership._replace(job=self.descents.get(key.pgid, 0))

    def _of(self, cgroup: int, cpuacct: int, memory: int = _ROOT) -> CgroupMembership:
        known = self._seen.get((cgroup, cpuacct))
        if known is not None:
            return known
        ids = (("v2", cgroup), ("cpuacct", cpuacct), ("memory", memory))
        wanted = tuple(identity for identity in ids if identity[1] > _ROOT)
        if not wanted:
            return NO_MEMBERSHIP
        return CgroupMembership(self._inodes.job(self._node, wanted), "")


class TaskEntry(ProcessEntry, kw_only=True, eq=False):
    """A process at the last reading. raw: its record. task: the parsed record."""

    task: Task
    raw: bytes


class BpfSource(ProcessSource):
    """Reader of all wanted processes of the iterator; see the module's docstring.

    Every method raises CcagentError if the pinned file is missing, unreadable or of another
    version. The constructor raises NotHereError in another pid namespace, where pids differ.
    """

    name = "bpf"

    def __init__(
        self, node: Node, selection: ProcessSelection, directory: str = pins.DIRECTORY
    ) -> None:
        super().__init__()
        self._node = node
        self._selection = selection
        self._path = f"{directory.lstrip('/')}/{pins.TASKS}"
        self._order: list[TaskEntry] = []
        self._by_name: dict[str, TaskEntry] = {}
        self._reading = 0
        self._read_at = 0.0
        self._attribution = ProcessAttribution(node, selection, self._by_name)
        self._memberships = CgroupMemberships(node)
        self._ended = EndedProcesses(node, selection, f"{directory.lstrip('/')}/{pins.ENDED}")
        if node.is_live and node.inode("proc/self/ns/pid") != pins.FIRST_PID_NAMESPACE:
            raise NotHereError("the pids of this pid namespace are not the kernel's")

    def begin(self) -> None:
        """Take a first reading of CPU times."""
        self.read()
        for entry in self._order:
            if entry.attribute_at != _NEVER:
                entry.attribute_at += 1  # the sample follows at once and need not repeat it

    def read(self) -> list[Process]:
        """Return all wanted processes, and records of processes ended since the last reading."""
        self.errors.clear()
        # In this order, no process is both among the ended and the living.
        self._ended.read(self.errors)
        self.counts_ended = self._ended.is_counting
        content = self._node.read(self._path, LARGEST_READING)
        parse_header(content)
        self._reading += 1
        before, self._read_at = self._read_at, self._node.clock.monotonic()
        seconds = self._read_at - before if self._reading > 1 else 0.0
        known, fresh, gone = self._take(raw_records(content), seconds)
        processes = known + self._admit(fresh, gone, seconds)
        if self._attribution.asks_ancestors:
            there = (*gone, *self._order)
            self._memberships.descents = {entry.task.pgid: entry.descent for entry in there}
        gone_from = [(entry.task, self._last_membership(entry)) for entry in gone]
        processes += self._ended.records(
            gone_from, self._memberships.for_ended, seconds, self.errors
        )
        return processes

    def _take(
        self, raws: list[bytes], seconds: float
    ) -> tuple[list[Process], list[TaskEntry], list[TaskEntry]]:
        """Return the known processes, the entries of new processes and those of ended processes."""
        reading, order = self._reading, self._order
        processes: list[Process] = []
        fresh: list[TaskEntry] = []
        now: list[TaskEntry] = []
        at, last = 0, len(order)
        for raw in raws:
            # The kernel sorts by pid, so most processes stay at their position.
            if at < last:
                entry = order[at]
                if raw == entry.raw and reading < entry.attribute_at:
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
                entry = TaskEntry(name, self._status(task), task=task, raw=raw)
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

    def _admit(
        self, fresh: list[TaskEntry], gone: list[TaskEntry], seconds: float
    ) -> list[Process]:
        """Return the new processes, and forget the ended ones."""
        for entry in gone:
            del self._by_name[entry.name]
        for entry in fresh:
            self._by_name[entry.name] = entry
        # Attribution needs all parents, and they are known only now.
        for entry in fresh:
            self._attribute(entry)
            entry.attribute_at = self._reading + 1
        processes: list[Process] = []
        for entry in fresh:
            start, own = entry.task.start / _SECOND, entry.status.own_ticks
            self._make(entry, first_utilization(self._node, start, own, seconds))
            if entry.process is not None:
                processes.append(entry.process)
        return processes

    def _advance(self, entry: TaskEntry, task: Task, raw: bytes, seconds: float) -> None:
        """Update a known process from a new record."""
        before, status_before = entry.task, entry.status
        status = self._status(task)
        entry.task, entry.raw, entry.status = task, raw, status
        if (
            self._reading >= entry.attribute_at
            or task[_OWNERS] != before[_OWNERS]
            or task[_CGROUPS] != before[_CGROUPS]
            # Kernel workers change their names with their work, but never their owner or cgroup.
            or (task.name != before.name and not task.flags & IS_KERNEL_THREAD)
        ):
            self._attribute(entry)
        used = status.own_ticks - status_before.own_ticks
        self._make(entry, utilization(used, seconds, self._node.clock_ticks))

    def _make(self, entry: TaskEntry, used: float) -> None:
        """Set and return the process of an entry; None if it isn't wanted."""
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

    def _status(self, task: Task) -> ProcessStat:
        """Return the record as the fields of /proc/PID/stat."""
        hertz = self._node.clock_ticks
        own, with_children = ticks(task, hertz)
        if task.flags & INEXACT:
            try:
                stat = parse_stat(self._node.read_single(f"proc/{task.pid}/stat"))
                own, with_children = stat.own_ticks, stat.all_ticks
            except CcagentError:
                pass  # the next reading is exact
        return ProcessStat(
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

    def _attribute(self, entry: TaskEntry) -> None:
        """Look up job and container."""
        task = entry.task
        if entry.attribute_at and entry.status.state == ZOMBIE:
            entry.attribute_at = _NEVER
            return
        entry.uid = task.euid
        try:
            membership = self._attribution.read(entry)
        except CcagentError:
            # The process has ended meanwhile, or /proc hides it (hidepid).
            membership = self._memberships.for_task(task)
        else:
            membership = self._memberships.learn(task, membership)
        self._attribution.apply(entry, membership)
        # A job may be found through ancestors later; the record shows every other change.
        asks = self._attribution.asks_ancestors or membership.is_unknown
        entry.attribute_at = self._reading + EVERY if asks else _NEVER

    def _last_membership(self, entry: TaskEntry) -> CgroupMembership:
        """Return the last membership of an ended process; the kernel counts it there."""
        membership = self._memberships.for_task(entry.task)
        if membership.job and not entry.job and not entry.uid:
            return NO_MEMBERSHIP  # Slurm's own
        return membership if membership.job else membership._replace(job=entry.descent)
