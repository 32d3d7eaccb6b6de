"""Snapshots of CPU time, CPUs and memory of the node and its jobs, and the use between two."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.energy.accounts import DomainClaim, DomainUse, apportion
from ccagent.agents.energy.cards import use_of_apu
from ccagent.agents.energy.sources import ALL_SOCKETS
from ccagent.errors import CcagentError, NotHereError, VanishedError
from ccagent.machine.cgroup.files import list_pids, parse_amount, parse_fields, parse_limit
from ccagent.machine.cgroup.jobs import V2, JobDirectory, job_directories
from ccagent.machine.cpus import CPUS, read_socket
from ccagent.machine.parsed import FileErrors
from ccagent.machine.procfs.system import parse_cpu_list, parse_kernel_stat, parse_meminfo
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ccagent.agents.energy.accounts import EnergyDomain
    from ccagent.machine.node import Node

MOST_JOBS = 10_000

_TRIES = 10
"""Ticks in which the user of a job is searched."""

_ASKED_PIDS = 32
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
        for directory in directories:
            time = self._cpu_time(node, directory)
            if time is not None:
                times[directory.job] = times.get(directory.job, 0) + time
        busy = self._busy(node)
        sockets = self._read_sockets(node)
        memory = self._read_memory(node)
        jobs: dict[int, JobState] = {}
        for directory in directories:
            known = jobs.get(directory.job) or JobState(times.get(directory.job))
            jobs[directory.job] = known._replace(
                cpus=known.cpus | self._cpus(node, directory),
                memory=known.memory + self._job_memory(node, directory),
                uid=max(known.uid, directory.uid, self._find_uid(node, directory)),
            )
        self._uids = {job: uid for job, uid in self._uids.items() if job in jobs}
        self._tries = {job: tries for job, tries in self._tries.items() if job in jobs}
        return NodeSnapshot(moment, jobs, busy, sockets, memory, is_complete)

    def _find_uid(self, node: Node, directory: JobDirectory) -> int:
        """Return the uid of a job's processes if its cgroup has no user; -1 if unknown."""
        if (
            directory.uid >= 0
            or directory.job in self._uids
            or self._tries.get(directory.job, 0) >= _TRIES
        ):
            return self._uids.get(directory.job, -1)
        self._tries[directory.job] = self._tries.get(directory.job, 0) + 1
        for pid in islice(list_pids(node, directory.path), _ASKED_PIDS):
            try:
                uid = node.owner(f"proc/{pid}")
            except CcagentError:
                continue
            if uid:  # slurmstepd is root's
                self._uids[directory.job] = uid
                return uid
        return -1

    def _list(self, node: Node) -> tuple[list[JobDirectory], bool]:
        try:
            directories = job_directories(node, _V1, self.complain)
        except NotHereError:
            return [], True
        except CcagentError as error:
            self.errors.append(str(error))
            return [], False
        is_complete = not self.errors
        if len({directory.job for directory in directories}) > MOST_JOBS:
            kept = set(sorted({directory.job for directory in directories})[:MOST_JOBS])
            self.errors.append(f"more than {MOST_JOBS} jobs; only {MOST_JOBS} are counted")
            directories = [directory for directory in directories if directory.job in kept]
        return directories, is_complete

    def _cpu_time(self, node: Node, directory: JobDirectory) -> int | None:
        if directory.controller == V2:
            fields = self.try_parsed(
                node,
                f"{directory.path}/cpu.stat",
                lambda content: parse_fields(content, {b"usage_usec": ("time", 1)}),
            )
            return None if fields is None else fields.get("time")
        if directory.controller == "cpuacct":
            time = self.try_parsed(node, f"{directory.path}/cpuacct.usage", parse_amount)
            return None if time is None else time // 1000
        return None

    def _cpus(self, node: Node, directory: JobDirectory) -> frozenset[int]:
        names = {V2: ("cpuset.cpus.effective", "cpuset.cpus"),
                 "cpuset": ("cpuset.effective_cpus", "cpuset.cpus")}  # fmt: skip
        for name in names.get(directory.controller, ()):
            cpus = self.try_parsed(node, f"{directory.path}/{name}", parse_cpu_list)
            if cpus is not None:
                return frozenset(cpus)
        return frozenset()

    def _job_memory(self, node: Node, directory: JobDirectory) -> int:
        names = {V2: ("memory.max", "memory.current"),
                 "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}  # fmt: skip
        if directory.controller not in names:
            return 0
        limit, used = names[directory.controller]
        size = self.try_parsed(node, f"{directory.path}/{limit}", parse_limit)
        if size is None:
            size = self.try_parsed(node, f"{directory.path}/{used}", parse_amount)
        return min(size or 0, self._memory or size or 0)

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
            online = node.read(f"{CPUS}/online")
            if online != self._online:
                self._sockets = {cpu: self._socket(node, cpu) for cpu in parse_cpu_list(online)}
                self._online = online
        except CcagentError as error:
            self.complain("online", error)
            self._online = b""
        return self._sockets

    def _socket(self, node: Node, cpu: int) -> int:
        try:
            return read_socket(node, cpu)
        except (NotHereError, VanishedError):
            return 0

    def _read_memory(self, node: Node) -> int:
        if not self._memory:
            sizes = self.try_parsed(node, "proc/meminfo", parse_meminfo) or {}
            self._memory = sizes.get("MemTotal", 0) * 1024
        return self._memory


class JobSpan(NamedTuple):
    """A job between two snapshots.

    cpu_time: us between the snapshots. seen: assumed us on the node; half of the interval if the
    job started or ended in it. cpus: the last cpus; empty if the job started and ended between the
    snapshots. is_known: the CPU time is known. places: cpus on which the job may have run: its
    first and last cpus.
    """

    cpu_time: int
    seen: int
    cpus: frozenset[int]
    memory: int
    is_known: bool = True
    places: frozenset[int] = frozenset()


class SocketUse(NamedTuple):
    """CPU time of a job on a socket in us, and its bounds."""

    busy: int
    least: int
    most: int


class NodeUse:
    """CPU time and allocations between two snapshots of a node, by job and socket.

    ended: known CPU time in us of ended jobs after the first snapshot, by job. span: us between the
    snapshots. exclusive: jobs that were alone on their sockets. apus: use of the GPU of each APU,
    and its utilisation, 0 to 1, by socket; set by the owner of this object.
    """

    def __init__(
        self, before: NodeSnapshot, now: NodeSnapshot, ended: Mapping[int, int] | None = None
    ) -> None:
        self.span = max(1, round((now.moment - before.moment) * 1e6))
        self.apus: dict[int, tuple[DomainUse, float | None]] = {}
        self._sockets = now.sockets
        self._memory = now.memory
        self._cpus_of: dict[int, list[int]] = {ALL_SOCKETS: [*now.sockets]}
        for cpu, socket in now.sockets.items():
            self._cpus_of.setdefault(socket, []).append(cpu)
        self._busy = {
            cpu: max(0, busy - before.busy[cpu])
            for cpu, busy in now.busy.items()
            if cpu in before.busy
        }
        self.jobs = self._make_spans(before, now, ended or {})
        self._seen: dict[int, int] = {}
        self._may_run: dict[int, int] = {}
        for job in self.jobs.values():
            for cpus, times in ((job.cpus, self._seen), (job.places, self._may_run)):
                for cpu in cpus:
                    times[cpu] = times.get(cpu, 0) + job.seen
        self._on: dict[int, dict[int, SocketUse]] = {
            number: self._place(job) for number, job in self.jobs.items()
        }
        self._jobs_on: dict[int, list[int]] = {}
        for number, uses in self._on.items():
            for socket in uses:
                self._jobs_on.setdefault(socket, []).append(number)
        self.exclusive = self._find_exclusive()

    def sockets_of(self, number: int) -> Collection[int]:
        """Return the sockets on which a job may have run, and ALL_SOCKETS."""
        return self._on[number].keys()

    def busy_of(self, socket: int) -> int:
        """Return the busy time of the cpus of a socket in us."""
        return sum(self._busy.get(cpu, 0) for cpu in self._cpus_of.get(socket, ()))

    def is_idle(self) -> bool:
        """Return whether the node had no job and its cpus were less than 1 % busy."""
        whole = self.span * len(self._busy)
        return not self.jobs and self.busy_of(ALL_SOCKETS) * 100 < whole

    def use_package(self, socket: int) -> DomainUse:
        """Return the use of a package: CPU time, and allocated cpus."""
        whole = len(self._cpus_of.get(socket, ())) * self.span
        return self._use(socket, self._held_cpus(socket), whole)

    def use_memory(self, socket: int) -> DomainUse:
        """Return the use of the memory of a socket: CPU time, and allocated memory."""
        cpus = self._cpus_of.get(socket, ())
        whole = self._memory * len(cpus) // max(1, len(self._sockets))
        held: dict[int, int] = {}
        for number in self._jobs_on.get(socket, ()):
            job = self.jobs[number]
            here = len(job.cpus.intersection(cpus))
            held[number] = job.memory * here * job.seen // max(1, len(job.cpus) * self.span)
        return self._use(socket, held, whole)

    def use_of(self, domain: EnergyDomain) -> DomainUse:
        """Return the use of a domain other than a card."""
        if domain.kind == "dram":
            return self.use_memory(domain.number)
        found = self.use_package(ALL_SOCKETS if domain.kind == "node" else domain.number)
        if domain.kind == "package" and domain.number in self.apus:
            return use_of_apu(found, *self.apus[domain.number])
        return found

    def _use(self, socket: int, held: dict[int, int], whole: int) -> DomainUse:
        claims: dict[int, DomainClaim] = {}
        own = 0
        for number in self._jobs_on.get(socket, ()):
            busy, least, most = self._on[number][socket]
            claims[number] = DomainClaim(busy, held.get(number, 0), least, most)
            own += busy
        busy = max(self.busy_of(socket), own)
        cpus = len(self._cpus_of.get(socket, ()))
        return DomainUse(claims, busy, whole, cpus)

    def _held_cpus(self, socket: int) -> dict[int, int]:
        """Return allocated cpu time in us by job; jobs on a shared cpu share its time."""
        here = {*self._cpus_of.get(socket, ())}
        held: dict[int, int] = {}
        for number in self._jobs_on.get(socket, ()):
            job = self.jobs[number]
            held[number] = sum(
                job.seen * self.span // max(self.span, self._seen[cpu]) for cpu in job.cpus & here
            )
        return held

    def _make_spans(
        self, before: NodeSnapshot, now: NodeSnapshot, ended: Mapping[int, int]
    ) -> dict[int, JobSpan]:
        online = frozenset(now.sockets)
        spans: dict[int, JobSpan] = {}
        for number in sorted({*before.jobs, *now.jobs, *ended}):
            old, new = before.jobs.get(number), now.jobs.get(number)
            if old is None and new is None:
                spent = ended[number]
                spans[number] = JobSpan(spent, min(spent, self.span), frozenset(), 0)
                continue
            state = new or old or JobState()
            time: int | None = None
            if new is None:
                time = ended.get(number)
            elif old is not None and new.cpu_time is not None and old.cpu_time is not None:
                # A requeued job has a new cgroup that started at 0.
                has_restarted = new.cpu_time < old.cpu_time
                time = new.cpu_time if has_restarted else new.cpu_time - old.cpu_time
            elif old is None and before.is_complete:
                time = new.cpu_time
            cpus = state.cpus & online or online
            first = cpus if old is None else old.cpus & online or online
            spans[number] = JobSpan(
                max(0, time or 0),
                self.span if old is not None and new is not None else self.span // 2,
                cpus,
                min(state.memory, now.memory or state.memory),
                is_known=time is not None,
                places=cpus | first,
            )
        return spans

    def _place(self, job: JobSpan) -> dict[int, SocketUse]:
        """Return the CPU time of a job by socket, and on all of them."""
        whole = SocketUse(job.cpu_time, job.cpu_time, job.cpu_time)
        cpus: dict[int, list[int]] = {}
        for cpu in job.places or self._sockets:
            cpus.setdefault(self._sockets[cpu], []).append(cpu)
        if len(cpus) < 2:
            return {ALL_SOCKETS: whole, **dict.fromkeys(cpus, whole)}
        own = {s: sum(self._busy.get(cpu, 0) for cpu in here) for s, here in cpus.items()}
        is_placed = bool(job.places) and any(own.values())
        numbers = {socket: len(here) for socket, here in cpus.items()}
        times = apportion(job.cpu_time, own if is_placed else numbers)
        if is_placed and all(self._may_run[cpu] <= job.seen for cpu in job.places):
            return {ALL_SOCKETS: whole, **{s: SocketUse(t, t, t) for s, t in times.items()}}
        most = {
            socket: min(job.cpu_time, own[socket], len(here) * self.span)
            for socket, here in cpus.items()
        }
        room = sum(most.values())
        uses = {ALL_SOCKETS: whole}
        for socket, time in times.items():
            least = max(0, job.cpu_time - (room - most[socket]))
            uses[socket] = SocketUse(time, min(least, time), max(most[socket], time))
        return uses

    def _find_exclusive(self) -> set[int]:
        shared = {
            socket
            for socket, jobs in self._jobs_on.items()
            if len(jobs) > 1 and socket != ALL_SOCKETS
        }
        return {
            number
            for number, job in self.jobs.items()
            if job.cpus and shared.isdisjoint(self._on[number])
        }
