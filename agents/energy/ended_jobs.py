"""Ended jobs with unsent records, their last CPU time, and Slurm's energy for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.sonar.jobs.ended import EndedDeltas
from ccagent.log import logger
from ccagent.machine.background import RepeatedCall
from ccagent.machine.bpf import pins
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from ccagent.agents.energy import EnergySettings
    from ccagent.agents.energy.accounts import JobAccount
    from ccagent.agents.energy.job_states import NodeSnapshot
    from ccagent.machine.node import Node

MOST_ENDED = 5000

_ASKED_AFTER = 30.0
"""Seconds until slurmctld has the energy of an ended job."""

_GIVEN_UP_AFTER = 300.0
_MOST_ASKED = 200
_TIME_LIMIT = 20.0
_OUTPUT_LIMIT = 1 << 20

_NO_ENERGY = 0xFFFFFFFE
"""NO_VAL of slurm.h: this and larger numbers mean unknown."""

_REMEMBERED = 1000


class EndedJob(NamedTuple):
    """An ended job. slurm_joules: ConsumedEnergyRaw; None if unknown or of several nodes."""

    account: JobAccount
    moment: float
    slurm_joules: int | None = None


def parse_consumed(content: bytes) -> dict[int, int]:
    """Parse the rows `job|nodes|joules` of jobs on one node. Skip other rows."""
    consumed: dict[int, int] = {}
    for line in content.splitlines():
        fields = line.split(b"|")
        if len(fields) != 3 or not all(f.isdigit() and len(f) <= 19 for f in fields):
            continue
        job, nodes, joules = map(int, fields)
        if nodes == 1 and 0 < joules < _NO_ENERGY:
            consumed[job] = joules
    return consumed


class EndedJobs:
    """Keeps a bounded number of ended jobs until they are taken."""

    def __init__(self, settings: EnergySettings) -> None:
        self._sacct = settings.sacct
        self._held: list[EndedJob] = []
        self._call: RepeatedCall[dict[int, int]] = RepeatedCall("sacct", 0.0)
        self._known: dict[int, int] = {}

    def add(self, account: JobAccount, moment: float) -> None:
        """Add a job. If there are too many, drop and log the oldest one."""
        self._held.append(EndedJob(account, moment))
        if len(self._held) > MOST_ENDED:
            lost = self._held.pop(0)
            logger.warning(
                "agent energy: the record of job %d is lost: too many ended jobs", lost.account.job
            )

    @property
    def accounts(self) -> list[JobAccount]:
        """Return the accounts of the kept jobs."""
        return [job.account for job in self._held]

    def take(self, node: Node, *, waits: bool) -> list[EndedJob]:
        """Return and remove the jobs with a complete record."""
        if not self._sacct or not waits:
            held, self._held = self._held, []
            return held
        now = node.clock.uptime()
        self._ask(node, [job.account.job for job in self._held
                         if now - job.moment >= _ASKED_AFTER])  # fmt: skip
        ready: list[EndedJob] = []
        left: list[EndedJob] = []
        for ended in self._held:
            joules = self._known.pop(ended.account.job, None)
            if joules is not None or now - ended.moment >= _GIVEN_UP_AFTER:
                ready.append(ended._replace(slurm_joules=joules))
            else:
                left.append(ended)
        self._held = left
        return ready

    def close(self) -> None:
        """Wait for a running program; it has a time limit."""
        self._call.is_over()

    def _ask(self, node: Node, jobs: list[int]) -> None:
        """Query Slurm in the background; a later tick has the result."""
        errors: list[str] = []
        self._known |= self._call.result(0.0, errors) or {}
        for error in errors:
            logger.warning("agent energy: %s", error)
        held = {job.account.job for job in self._held}
        self._known = {job: joules for job, joules in self._known.items() if job in held}
        wanted = [job for job in jobs if job not in self._known][:_MOST_ASKED]
        if wanted:
            command = [
                self._sacct, "--allusers", "--noheader", "--parsable2", "--noconvert",
                "--allocations", "--format=JobIDRaw,NNodes,ConsumedEnergyRaw",
                f"--jobs={','.join(map(str, wanted))}",
            ]  # fmt: skip

            def call() -> dict[int, int]:
                return parse_consumed(
                    run_slurm(node, command, time_limit=_TIME_LIMIT, output_limit=_OUTPUT_LIMIT)
                )

            self._call.begin(node.clock.time(), call, [])


class EndedTimes:
    """Sums the CPU time of ended processes by job, from the pinned iterator.

    The cgroup of an ended job no longer exists, and its CPU time since the last tick is lost. All
    processes of the job have ended, so the sum over them is its whole CPU time.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._deltas: EndedDeltas | None = None
        self._sums: dict[int, int] = {}
        self._from_start: set[int] = set()
        self._closed: dict[int, None] = {}

    def read(self, node: Node, before: NodeSnapshot, now: NodeSnapshot) -> dict[int, int]:
        """Return the known CPU time in us of jobs between a snapshot and their end.

        It is known for jobs with an observed start, and for jobs that started and ended between two
        snapshots.
        """
        self.errors = []
        deltas: dict[int, int] = {}
        if self._deltas is None:
            self._deltas = EndedDeltas(node, f"{pins.DIRECTORY.lstrip('/')}/{pins.ENDED}")
        for key, delta in self._deltas.read(self.errors).items():
            if key.job:
                deltas[key.job] = deltas.get(key.job, 0) + delta.runtime
        if not self._deltas.is_counting:
            self._sums, self._from_start = {}, set()
            return {}
        for job, runtime in deltas.items():
            self._sums[job] = self._sums.get(job, 0) + runtime
        if before.is_complete:
            self._from_start |= now.jobs.keys() - before.jobs.keys()
        known = self._find(before, now, deltas)
        for job in before.jobs.keys() - now.jobs.keys() | known.keys():
            self._closed[job] = None
        for job in [*self._closed][:-_REMEMBERED]:
            del self._closed[job]
        self._sums = {job: runtime for job, runtime in self._sums.items() if job in now.jobs}
        self._from_start &= now.jobs.keys()
        return known

    def _find(
        self, before: NodeSnapshot, now: NodeSnapshot, deltas: dict[int, int]
    ) -> dict[int, int]:
        if not now.is_complete:
            return {}
        times: dict[int, int] = {}
        for job in before.jobs.keys() - now.jobs.keys():
            known = before.jobs[job].cpu_time
            if job in self._from_start and known is not None and job in self._sums:
                times[job] = max(0, self._sums[job] // 1000 - known)
        if before.is_complete:
            for job, runtime in deltas.items():
                # The rest of an already closed job is not a new job.
                is_known = job in before.jobs or job in now.jobs or job in self._closed
                if not is_known and runtime >= 1000:
                    times[job] = runtime // 1000
        return times
