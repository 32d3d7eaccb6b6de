"""A model machine: the power of its sockets and the energy of its jobs are known exactly.

P = p0 + sum of w_j * busy_j: a socket takes idle watts, and each job more watts for each busy cpu;
so does its memory. `ceems` and `kepler` apply the rules of these programs to the same traces.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ccagent.agents.energy.accounts import (
    DomainKind,
    DomainUse,
    EnergyDomain,
    JobAccount,
    MeasuredEnergy,
)
from ccagent.agents.energy.idle_power import IdleFloor
from ccagent.agents.energy.job_states import JobState, NodeSnapshot, NodeUse
from ccagent.agents.energy.ledger import Ledger, TickTotals

GIB = 1 << 30
MEMORY = 256 * GIB
MEMORY_RATIO = 15.0


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """A job. watts, memory_watts: of a busy cpu. busy: share of the time in which its cpus work."""

    number: int
    cpus: tuple[int, ...]
    watts: float
    busy: float
    memory: int = 8 * GIB
    first: int = 0
    last: int = 1 << 30
    memory_watts: float = 0.0


@dataclass
class ModelMachine:
    """Two sockets with so many cpus. idle, memory_idle: W of a socket. system: busy cpus, and W.

    truth, memory_truth: active J of the jobs. Without `memory_idle` no memory is measured.
    """

    jobs: list[ModelJob]
    cpus: int = 16
    idle: float = 60.0
    system_busy: float = 0.0
    system_watts: float = 4.0
    seed: int = 1
    memory_idle: float = 0.0
    truth: dict[int, float] = field(default_factory=dict[int, float])
    memory_truth: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._moment = 1000.0
        self._busy = dict.fromkeys(range(2 * self.cpus), 0)
        self._times = {job.number: 0 for job in self.jobs}
        self._energies = [0.0, 0.0]
        self.sockets = {cpu: cpu // self.cpus for cpu in range(2 * self.cpus)}
        self.tick_number = 0
        self.trace: list[TraceTick] = []

    def state(self) -> NodeSnapshot:
        """Return the counters of the kernel now. A job is there from its first tick on."""
        jobs = {
            job.number: JobState(self._times[job.number], frozenset(job.cpus), job.memory)
            for job in self.jobs
            if job.first <= self.tick_number <= job.last
        }
        return NodeSnapshot(self._moment, jobs, dict(self._busy), self.sockets, MEMORY)

    def run(self, seconds: float) -> dict[EnergyDomain, MeasuredEnergy]:
        """Let time pass. Return the energy of the packages as counters show it."""
        self.tick_number += 1
        self._moment += seconds
        joules = [self.idle * seconds, self.idle * seconds]
        memory = [self.memory_idle * seconds, self.memory_idle * seconds]
        busy_now: dict[int, int] = {}
        for job in self.jobs:
            if not job.first <= self.tick_number <= job.last:
                continue
            for cpu in job.cpus:
                share = min(1.0, max(0.0, job.busy * self._random.uniform(0.7, 1.3)))
                busy = round(share * seconds * 1e6)
                self._busy[cpu] += busy
                self._times[job.number] += busy
                busy_now[job.number] = busy_now.get(job.number, 0) + busy
                spent = job.watts * busy / 1e6
                joules[self.sockets[cpu]] += spent
                self.truth[job.number] = self.truth.get(job.number, 0.0) + spent
                spent = job.memory_watts * busy / 1e6
                memory[self.sockets[cpu]] += spent
                self.memory_truth[job.number] = self.memory_truth.get(job.number, 0.0) + spent
        for cpu, socket in self.sockets.items():
            busy = round(self.system_busy * seconds * 1e6)
            self._busy[cpu] += busy
            joules[socket] += self.system_watts * busy / 1e6
        busy = sum(self._busy.values())
        self.trace.append(TraceTick(seconds, sum(joules), busy_now, busy))
        found = {
            EnergyDomain("package", socket): MeasuredEnergy(round(each * 1e6), seconds, "model")
            for socket, each in enumerate(joules)
        }
        if self.memory_idle:
            found |= {
                EnergyDomain("dram", socket): MeasuredEnergy(round(each * 1e6), seconds, "model")
                for socket, each in enumerate(memory)
            }
        return found

    def true_energy(self, number: int) -> float:
        """Return the joules of a job: active, and the idle power that goes with its cpus."""
        job = next(job for job in self.jobs if job.number == number)
        ticks = [t for n, t in enumerate(self.trace, 1) if job.first <= n <= job.last]
        idle = self.idle * len(job.cpus) / self.cpus
        return self.truth.get(number, 0.0) + sum(t.seconds for t in ticks) * idle

    def true_memory(self, number: int) -> float:
        """Return the joules of a job's memory: active, and idle by its allocation."""
        job = next(job for job in self.jobs if job.number == number)
        ticks = [t for n, t in enumerate(self.trace, 1) if job.first <= n <= job.last]
        idle = 2 * self.memory_idle * job.memory / MEMORY
        return self.memory_truth.get(number, 0.0) + sum(t.seconds for t in ticks) * idle


@dataclass(frozen=True)
class TraceTick:
    """What others read of a tick: J of both packages, us of jobs, us of everything so far."""

    seconds: float
    joules: float
    busy: dict[int, int]
    all_busy: int


@dataclass
class ModelRun:
    """The ledger of a run of a model machine. ended: accounts of ended jobs, by number."""

    machine: ModelMachine
    ledger: Ledger
    ended: dict[int, JobAccount] = field(default_factory=dict[int, JobAccount])
    totals: list[TickTotals] = field(default_factory=list[TickTotals])


def run_model(
    machine: ModelMachine, ticks: int, seconds: float = 10.0, *, ratio: float = 2.0,
    knows_idle: bool = False,
) -> ModelRun:  # fmt: skip
    """Run a machine, and split its energy."""
    idle: dict[DomainKind, float] = {
        "package": machine.idle if knows_idle else 0.0,
        "dram": machine.memory_idle if knows_idle else 0.0,
    }
    ratios: dict[DomainKind, float] = {"package": ratio, "dram": MEMORY_RATIO}
    run = ModelRun(machine, Ledger(IdleFloor(idle, ratios), ratios))
    before = machine.state()
    for _ in range(ticks):
        measured = machine.run(seconds)
        now = machine.state()
        # A model's jobs begin and end at ticks, and are known for all of them.
        jobs = {**now.jobs}
        earlier = {
            number: before.jobs.get(number, job._replace(cpu_time=0))
            for number, job in jobs.items()
        }
        use = NodeUse(before._replace(jobs=earlier), now)
        run.totals.append(
            run.ledger.add_tick(use, measured, lambda _: DomainUse({}, 0, 1), now.moment)
        )
        before = now
        for number in run.ledger.jobs.keys() - now.jobs.keys():
            run.ended[number] = run.ledger.jobs.pop(number)
    return run


def ceems(machine: ModelMachine) -> dict[int, float]:
    """CEEMS' rule for packages: P_u = P * cpu_u / cpu_busy, without idle, iowait and steal.

    Source: cmd/ceems_tool/rules/cpu-rapl.rules of CEEMS, commit 8393acd.
    """
    found: dict[int, float] = {}
    before = 0
    for tick in machine.trace:
        busy, before = tick.all_busy - before, tick.all_busy
        for job, own in tick.busy.items():
            found[job] = found.get(job, 0.0) + (tick.joules * own / busy if busy else 0.0)
    return found


def kepler(machine: ModelMachine) -> dict[int, float]:
    """Kepler's: E_active = dE * busy / (busy + idle), E_w = E_active * cpu_w / cpu of processes.

    Source: internal/monitor/node.go and process.go of Kepler, commit 13944a6.
    """
    found: dict[int, float] = {}
    before = 0
    for tick in machine.trace:
        busy, before = tick.all_busy - before, tick.all_busy
        whole = tick.seconds * 1e6 * len(machine.sockets)
        active = tick.joules * busy / whole
        for job, own in tick.busy.items():
            found[job] = found.get(job, 0.0) + (active * own / busy if busy else 0.0)
    return found
