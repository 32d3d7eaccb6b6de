"""Counters of the cgroups of Slurm jobs and their energy, besides the sums over their processes.

These counters include ended processes. Cgroups also have limits, throttling and OOM kills.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.agents.metrics.presets import apply_preset
from ccagent.agents.metrics.readers.base import Count, Scope
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader, make_job_values
from ccagent.errors import NotHereError
from ccagent.machine.cgroup.counters import JobCgroups, JobCounters
from ccagent.machine.counters import Rates
from ccagent.machine.job_energy import latest_energy
from ccagent.records.envelopes import SampleJob, SampleJobCgroup, SampleJobEnergy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

_METRICS = CgroupJobsReader.of_jobs
_OUTPUTS = {
    name: apply_preset("clustercockpit", name, metric.unit) for name, metric in _METRICS.items()
}


class JobAccounts:
    """Reads the cgroup counters of jobs at each sample."""

    def __init__(self) -> None:
        self._cgroups = JobCgroups()
        self._rates: Rates[Scope] = Rates()

    def read(self, node: Node, errors: list[str]) -> dict[int, JobCounters]:
        """Return the counters by job; a job without a cgroup is omitted."""
        try:
            jobs = self._cgroups.read(node)
        except NotHereError:
            return {}
        errors += self._cgroups.errors
        return jobs

    def values(self, node: Node, jobs: dict[int, JobCounters]) -> dict[int, dict[str, float]]:
        """Return the metrics of each job by ClusterCockpit's names.

        Rates are those since the previous call.
        """
        counts: list[Count] = []
        values: dict[int, dict[str, float]] = {job: {} for job in jobs}
        for value in make_job_values(jobs):
            if isinstance(value, Count):
                counts.append(value)
            else:
                values[int(value.scope.stype_id)][value.metric] = value.value
        for metric, rate, scope in self._rates.of(counts, _METRICS, node.clock.monotonic()):
            values[int(scope.stype_id)][metric] = rate
        return {
            job: {metric: number * _OUTPUTS[metric].factor for metric, number in numbers.items()}
            for job, numbers in values.items()
        }


def with_cgroups(
    jobs: list[SampleJob], counters: dict[int, JobCounters], pss: dict[int, int]
) -> list[SampleJob]:
    """Return the jobs, with cgroup counters in the first record of each Slurm job.

    pss: known proportional set sizes in KB, by job.
    """

    def extend(job: SampleJob) -> SampleJob | None:
        known = counters.get(job.job)
        if known is None and job.job not in pss:
            return None
        cgroup = _cgroup(known or JobCounters(), pss.get(job.job, 0))
        return structs.replace(job, cgroup=cgroup)

    return _extend_first(jobs, extend)


def _cgroup(counters: JobCounters, pss: int) -> SampleJobCgroup:
    return SampleJobCgroup(
        rss_memory=_part(counters.mem_rss, 1024),
        anon_memory=_part(counters.mem_anon, 1024),
        shmem_memory=_part(counters.mem_shmem, 1024),
        file_memory=_part(counters.mem_file, 1024),
        pss_memory=pss,
        used_memory=_part(counters.mem_used, 1024),
        peak_memory=_part(counters.mem_peak, 1024),
        memory_limit=_part(counters.mem_limit, 1024),
        oom_kills=counters.oom_kills or 0,
        cpu_time=_part(counters.cpu_time, 1_000_000),
        throttled_time=_part(counters.cpu_throttled, 1_000_000),
        data_read=_part(counters.io_read, 1024),
        data_written=_part(counters.io_write, 1024),
        cpu_pressure=_part(counters.pressure_cpu, 1000),
        memory_pressure=_part(counters.pressure_memory, 1000),
        io_pressure=_part(counters.pressure_io, 1000),
    )


def _part(value: int | None, unit: int) -> int:
    return (value or 0) // unit


def with_energies(jobs: list[SampleJob]) -> list[SampleJob]:
    """Return the jobs, with known energy so far in the first record of each Slurm job."""
    latest = latest_energy()
    if latest is None:
        return jobs

    def extend(job: SampleJob) -> SampleJob | None:
        known = latest.jobs.get(job.job)
        if known is None:
            return None
        energy = SampleJobEnergy(
            active=known.sum_of("active") // 1_000_000,
            idle=known.sum_of("idle") // 1_000_000,
            least=int(known.interval.least),
            most=ceil(known.interval.most),
            idle_known=int(known.is_idle_known),
            power=(known.power or 0) // 1_000_000,
            coverage=round(100 * known.coverage, 1),
        )
        return structs.replace(job, energy=energy)

    return _extend_first(jobs, extend)


def _extend_first(
    jobs: list[SampleJob], extend: Callable[[SampleJob], SampleJob | None]
) -> list[SampleJob]:
    """Return the jobs with the first record of each Slurm job extended, unless that gives None."""
    seen: set[int] = set()
    extended: list[SampleJob] = []
    for job in jobs:
        more = None if job.epoch or job.job in seen else extend(job)
        extended.append(more or job)
        if more is not None:
            seen.add(job.job)
    return extended
