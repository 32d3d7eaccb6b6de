"""Optional energy of jobs in process records, from the agent `energy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.machine.job_energy import latest_energy
from ccagent.records.envelopes import SampleJobEnergy

if TYPE_CHECKING:
    from ccagent.records.envelopes import SampleJob


def with_energies(jobs: list[SampleJob]) -> list[SampleJob]:
    """Return the jobs, with known energy so far in the first record of each Slurm job."""
    latest = latest_energy()
    if latest is None:
        return jobs
    found: list[SampleJob] = []
    seen: set[int] = set()
    for job in jobs:
        known = None if job.epoch or job.job in seen else latest.jobs.get(job.job)
        if known is None:
            found.append(job)
            continue
        seen.add(job.job)
        energy = SampleJobEnergy(
            active=known.sum_of("active") // 1_000_000,
            idle=known.sum_of("idle") // 1_000_000,
            power=(known.power or 0) // 1_000_000,
            coverage=round(100 * known.coverage, 1),
        )
        found.append(structs.replace(job, energy=energy))
    return found
