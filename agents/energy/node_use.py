"""Use of a node between two snapshots: CPU time by job and socket, and allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.energy.job_states import JobState
from ccagent.agents.energy.sources.base import ALL_SOCKETS
from ccagent.agents.energy.split.apportion import apportion
from ccagent.agents.energy.split.domain_split import DomainClaim, DomainUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.energy.domains import EnergyDomain
    from ccagent.agents.energy.job_states import NodeSnapshot


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
    snapshots. exclusive: jobs that were alone on their sockets.
    """

    def __init__(
        self, before: NodeSnapshot, now: NodeSnapshot, ended: Mapping[int, int] | None = None
    ) -> None:
        self.span = max(1, round((now.moment - before.moment) * 1e6))
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
        self.exclusive = self._find_exclusive()

    def sockets_of(self, number: int) -> set[int]:
        """Return the sockets on which a job may have run."""
        return {self._sockets[cpu] for cpu in self.jobs[number].places or self._sockets}

    def busy_of(self, socket: int) -> int:
        """Return the busy time of the cpus of a socket in us."""
        return sum(self._busy.get(cpu, 0) for cpu in self._cpus_of.get(socket, ()))

    def is_idle(self) -> bool:
        """Return whether the node had no job and its cpus were less than 1 % busy."""
        whole = self.span * len(self._busy)
        return not self.jobs and self.busy_of(ALL_SOCKETS) * 100 < whole

    def use_package(self, socket: int) -> DomainUse:
        """Return the use of a package: CPU time, and allocated cpus."""
        return self._use(socket, self._held_cpus(socket), len(self._cpus_of.get(socket, ())))

    def use_memory(self, socket: int) -> DomainUse:
        """Return the use of the memory of a socket: CPU time, and allocated memory."""
        cpus = self._cpus_of.get(socket, ())
        whole = self._memory * len(cpus) // max(1, len(self._sockets))
        held: dict[int, int] = {}
        for number, job in self.jobs.items():
            here = len(job.cpus.intersection(cpus))
            held[number] = job.memory * here * job.seen // max(1, len(job.cpus) * self.span)
        return self._use(socket, held, whole, unit=1)

    def use_of(self, domain: EnergyDomain) -> DomainUse:
        """Return the use of a domain other than a card."""
        if domain.kind == "dram":
            return self.use_memory(domain.number)
        return self.use_package(ALL_SOCKETS if domain.kind == "node" else domain.number)

    def _use(
        self, socket: int, held: dict[int, int], whole: int, unit: int | None = None
    ) -> DomainUse:
        claims: dict[int, DomainClaim] = {}
        for number in self.jobs:
            on = self._on[number].get(socket, SocketUse(0, 0, 0))
            claims[number] = DomainClaim(on.busy, held.get(number, 0), on.least, on.most)
        return DomainUse(claims, self.busy_of(socket), whole * (unit or self.span))

    def _held_cpus(self, socket: int) -> dict[int, int]:
        """Return allocated cpu time in us by job; jobs on a shared cpu share its time."""
        here = {*self._cpus_of.get(socket, ())}
        return {
            number: sum(
                job.seen * self.span // max(self.span, self._seen[cpu]) for cpu in job.cpus & here
            )
            for number, job in self.jobs.items()
        }

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
        found = {ALL_SOCKETS: whole}
        for socket, time in times.items():
            least = max(0, job.cpu_time - (room - most[socket]))
            found[socket] = SocketUse(time, min(least, time), max(most[socket], time))
        return found

    def _find_exclusive(self) -> set[int]:
        on_socket: dict[int, set[int]] = {}
        for number in self.jobs:
            for socket in self.sockets_of(number):
                on_socket.setdefault(socket, set()).add(number)
        return {
            number
            for number, job in self.jobs.items()
            if job.cpus and all(len(on_socket[socket]) == 1 for socket in self.sockets_of(number))
        }
