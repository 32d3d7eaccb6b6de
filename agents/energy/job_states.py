"""Snapshot of the node and its jobs: CPU time, CPUs and memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, VanishedError
from ccagent.machine.cgroup.files import parse_amount, parse_fields, parse_limit
from ccagent.machine.cgroup.jobs import V2, job_directories
from ccagent.machine.parsed import FileErrors, read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list, parse_topology_id
from ccagent.machine.procfs.system import parse_kernel_stat, parse_meminfo
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.cgroup.jobs import JobDirectory
    from ccagent.machine.node import Node

MOST_JOBS = 10_000
_TRIES = 10
"""Ticks in which the user of a job is searched."""
_ASKED_PIDS = 32
_DEEPEST = 4
"""Cgroup levels below a job: step_0/user/task_0."""
_CPUS = "sys/devices/system/cpu"
_V1 = ("cpuacct", "cpuset", "memory")
_BUSY = (0, 1, 2, 5, 6)
"""Indices of user, nice, system, irq and softirq in CPU_STATES: busy time without steal.

cpu.stat of the root cgroup sums the same counters plus steal (root_cgroup_cputime() in
kernel/cgroup/rstat.c), so it is no better.
"""


class JobState(NamedTuple):
    """A job. cpu_time: us so far, None if unknown. cpus: allowed cpus; empty: not confined.

    memory: allocated B, else used B. uid: -1 if unknown.
    """

    cpu_time: int | None = None
    cpus: frozenset[int] = frozenset()
    memory: int = 0
    uid: int = -1


class NodeSnapshot(NamedTuple):
    """A snapshot of the node. moment: seconds since boot.

    jobs: by id. busy: us of busy time so far, by online cpu. sockets: by online cpu. memory: B of
    the node. is_complete: all jobs are listed.
    """

    moment: float
    jobs: dict[int, JobState]
    busy: dict[int, int]
    sockets: dict[int, int]
    memory: int
    is_complete: bool = True


class StateReader(FileErrors):
    """Reads snapshots of a node. errors: of the last reading, the first of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self._online = b""
        self._sockets: dict[int, int] = {}
        self._memory = 0
        self._uids: dict[int, int] = {}
        self._tries: dict[int, int] = {}

    def read(self, node: Node) -> NodeSnapshot:
        """Read /proc/stat and the cgroups of jobs, CPU times first."""
        self.forget_errors()
        moment = node.clock.uptime()
        directories, is_complete = self._list(node)
        times: dict[int, int] = {}
        for each in directories:
            time = self._cpu_time(node, each)
            if time is not None:
                times[each.job] = times.get(each.job, 0) + time
        busy = self._busy(node)
        sockets = self._read_sockets(node)
        memory = self._read_memory(node)
        jobs: dict[int, JobState] = {}
        for each in directories:
            known = jobs.get(each.job) or JobState(times.get(each.job))
            jobs[each.job] = known._replace(
                cpus=known.cpus | self._cpus(node, each),
                memory=known.memory + self._job_memory(node, each),
                uid=max(known.uid, each.uid, self._find_uid(node, each)),
            )
        self._uids = {job: uid for job, uid in self._uids.items() if job in jobs}
        self._tries = {job: tries for job, tries in self._tries.items() if job in jobs}
        return NodeSnapshot(moment, jobs, busy, sockets, memory, is_complete)

    def _find_uid(self, node: Node, each: JobDirectory) -> int:
        """Return the uid of a job's processes if its cgroup has no user; -1 if unknown."""
        if each.uid >= 0 or each.job in self._uids or self._tries.get(each.job, 0) >= _TRIES:
            return self._uids.get(each.job, -1)
        self._tries[each.job] = self._tries.get(each.job, 0) + 1
        for pid in islice(list_pids(node, each.path), _ASKED_PIDS):
            try:
                uid = node.owner(f"proc/{pid}")
            except CcagentError:
                continue
            if uid:  # slurmstepd is root's
                self._uids[each.job] = uid
                return uid
        return -1

    def _list(self, node: Node) -> tuple[list[JobDirectory], bool]:
        try:
            found = job_directories(node, _V1, self.complain)
        except NotHereError:
            return [], True
        except CcagentError as error:
            self.errors.append(str(error))
            return [], False
        is_complete = not self.errors
        if len({each.job for each in found}) > MOST_JOBS:
            kept = set(sorted({each.job for each in found})[:MOST_JOBS])
            self.errors.append(f"more than {MOST_JOBS} jobs; only {MOST_JOBS} are counted")
            found = [each for each in found if each.job in kept]
        return found, is_complete

    def _cpu_time(self, node: Node, each: JobDirectory) -> int | None:
        if each.controller == V2:
            fields = self.try_parsed(
                node,
                f"{each.path}/cpu.stat",
                lambda content: parse_fields(content, {b"usage_usec": ("time", 1)}),
            )
            return None if fields is None else fields.get("time")
        if each.controller == "cpuacct":
            time = self.try_parsed(node, f"{each.path}/cpuacct.usage", parse_amount)
            return None if time is None else time // 1000
        return None

    def _cpus(self, node: Node, each: JobDirectory) -> frozenset[int]:
        names = {V2: ("cpuset.cpus.effective", "cpuset.cpus"),
                 "cpuset": ("cpuset.effective_cpus", "cpuset.cpus")}  # fmt: skip
        for name in names.get(each.controller, ()):
            found = self.try_parsed(node, f"{each.path}/{name}", parse_cpu_list)
            if found is not None:
                return frozenset(found)
        return frozenset()

    def _job_memory(self, node: Node, each: JobDirectory) -> int:
        names = {V2: ("memory.max", "memory.current"),
                 "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}  # fmt: skip
        if each.controller not in names:
            return 0
        limit, used = names[each.controller]
        found = self.try_parsed(node, f"{each.path}/{limit}", parse_limit)
        if found is None:
            found = self.try_parsed(node, f"{each.path}/{used}", parse_amount)
        return min(found or 0, self._memory or found or 0)

    def _busy(self, node: Node) -> dict[int, int]:
        stat = self.try_parsed(node, "proc/stat", parse_kernel_stat)
        if stat is None:
            return {}
        unit = 1_000_000 // node.clock_ticks
        return {
            cpu: min(sum(times[n] for n in _BUSY) * unit, LARGEST_UINT)
            for cpu, times in stat.times.items()
        }

    def _read_sockets(self, node: Node) -> dict[int, int]:
        """Return the socket of each online cpu. Read again after hotplug."""
        try:
            online = node.read(f"{_CPUS}/online")
            if online != self._online:
                self._sockets = {
                    cpu: max(0, self._socket(node, cpu)) for cpu in parse_cpu_list(online)
                }
                self._online = online
        except CcagentError as error:
            self.complain("online", error)
            self._online = b""
        return self._sockets

    def _socket(self, node: Node, cpu: int) -> int:
        path = f"{_CPUS}/cpu{cpu}/topology/physical_package_id"
        try:
            return read_parsed(node, path, parse_topology_id)
        except (NotHereError, VanishedError):
            return 0

    def _read_memory(self, node: Node) -> int:
        if not self._memory:
            sizes = self.try_parsed(node, "proc/meminfo", parse_meminfo) or {}
            self._memory = sizes.get("MemTotal", 0) * 1024
        return self._memory


def list_pids(node: Node, path: str, depth: int = _DEEPEST) -> Iterator[int]:
    """Yield the pids in a cgroup and the cgroups below it."""
    try:
        content = node.read(f"{path}/cgroup.procs")
        names = node.directories(path) if depth else ()
    except CcagentError:
        return
    yield from (int(word) for word in content.split() if word.isdigit() and len(word) <= 10)
    for name in names:
        yield from list_pids(node, f"{path}/{name}", depth - 1)
