"""Ended jobs with unsent records, and Slurm's energy of each job for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.log import logger
from ccagent.machine.background import RepeatedCall
from ccagent.machine.slurm_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.energy.accounts import JobAccount
    from ccagent.agents.energy.settings import EnergySettings
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


class EndedJob(NamedTuple):
    """An ended job. slurm_joules: ConsumedEnergyRaw; None if unknown or of several nodes."""

    account: JobAccount
    moment: float
    slurm_joules: int | None = None


def make_sacct_command(program: str, jobs: Sequence[int]) -> list[str]:
    """Return the sacct command for the energy of jobs."""
    return [
        program, "--allusers", "--noheader", "--parsable2", "--noconvert", "--allocations",
        "--format=JobIDRaw,NNodes,ConsumedEnergyRaw", f"--jobs={','.join(map(str, jobs))}",
    ]  # fmt: skip


def parse_consumed(content: bytes) -> dict[int, int]:
    """Parse the rows `job|nodes|joules` of jobs on one node. Skip other rows."""
    found: dict[int, int] = {}
    for line in content.splitlines():
        fields = line.split(b"|")
        if len(fields) != 3 or not all(f.isdigit() and len(f) <= 19 for f in fields):
            continue
        job, nodes, joules = map(int, fields)
        if nodes == 1 and 0 < joules < _NO_ENERGY:
            found[job] = joules
    return found


class EndedJobs:
    """Keeps a bounded number of ended jobs until they are taken."""

    def __init__(self, settings: EnergySettings) -> None:
        self._sacct = settings.sacct
        self._held: list[EndedJob] = []
        self._call: RepeatedCall[dict[int, int]] = RepeatedCall("sacct", 0.0)
        self._known: dict[int, int] = {}
        self.lost = 0

    def add(self, account: JobAccount, moment: float) -> None:
        """Add a job. If there are too many, drop and log the oldest one."""
        self._held.append(EndedJob(account, moment))
        if len(self._held) > MOST_ENDED:
            lost = self._held.pop(0)
            self.lost += 1
            logger.warning(
                "agent energy: the record of job %d is lost: too many ended jobs", lost.account.job
            )

    @property
    def accounts(self) -> list[JobAccount]:
        """Return the accounts of the kept jobs."""
        return [each.account for each in self._held]

    def take(self, node: Node, *, waits: bool) -> list[EndedJob]:
        """Return and remove the jobs with a complete record."""
        if not self._sacct or not waits:
            held, self._held = self._held, []
            return held
        now = node.clock.uptime()
        self._ask(node, [each.account.job for each in self._held
                         if now - each.moment >= _ASKED_AFTER])  # fmt: skip
        ready: list[EndedJob] = []
        left: list[EndedJob] = []
        for each in self._held:
            joules = self._known.pop(each.account.job, None)
            if joules is not None or now - each.moment >= _GIVEN_UP_AFTER:
                ready.append(each._replace(slurm_joules=joules))
            else:
                left.append(each)
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
        held = {each.account.job for each in self._held}
        self._known = {job: joules for job, joules in self._known.items() if job in held}
        wanted = [job for job in jobs if job not in self._known][:_MOST_ASKED]
        if wanted:
            command = make_sacct_command(self._sacct, wanted)

            def call() -> dict[int, int]:
                output = node.stream(
                    command,
                    time_limit=_TIME_LIMIT,
                    output_limit=_OUTPUT_LIMIT,
                    environment=ENVIRONMENT,
                )
                return parse_consumed(b"".join(output))

            self._call.begin(node.clock.time(), call, [])
