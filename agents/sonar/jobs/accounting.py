"""Memory of Slurm jobs, counters of their control groups, and energy: beside the sums of processes.

These counters include ended processes. Control groups also have limits, throttling and OOM kills.

Some receivers only add up `resident_memory`. Pages shared after a fork count in each process, and
shared memory in none. The control group of a job counts each page once. So the memory of the
processes is scaled to the sum of the control group's anonymous and shared memory. The proportions
between the processes stay the same.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.agents.sonar.process import FIRST_PID_OF_ENDED, Process
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
)
from ccagent.log import logger
from ccagent.machine.cgroup.counters import FILES, JobCounters
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.job_energy import latest_energy
from ccagent.machine.parsed import FileErrors
from ccagent.records.envelopes import (
    LARGEST_UINT,
    SampleJob,
    SampleJobCgroup,
    SampleJobEnergy,
    SampleProcess,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

_KB = 1024
_PSS = re.compile(rb"^Pss: +([0-9]{1,20}) kB$", re.MULTILINE)


class JobMemoryReader(FileErrors):
    """Reads anonymous and shared memory of the control groups of Slurm's jobs."""

    def read(self, node: Node) -> dict[int, int]:
        """Return KB by job. A job is omitted if one of its control groups can't be read."""
        self.forget_errors()
        try:
            directories = job_directories(node, ("memory",), self.complain)
        except NotHereError:
            return {}
        sizes: dict[int, int | None] = {}
        for directory in directories:
            parse = FILES[directory.controller]["memory.stat"]
            values = self.try_parsed(node, f"{directory.path}/memory.stat", parse) or {}
            size, before = values.get("mem_rss"), sizes.get(directory.job, 0)
            sizes[directory.job] = None if size is None or before is None else before + size
        return {job: size // _KB for job, size in sizes.items() if size is not None}


def memory_of(counters: dict[int, JobCounters]) -> dict[int, int]:
    """Return KB by job from counters that have been read already."""
    return {
        job: counted.mem_rss // _KB
        for job, counted in counters.items()
        if counted.mem_rss is not None
    }


class MemoryScale:
    """Scales the memory of processes to that of their jobs. Unchanged records are reused."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Scaled] = {}

    def scale(self, jobs: list[SampleJob], memory: dict[int, int]) -> list[SampleJob]:
        """Return jobs whose processes have the memory of the control group in sum.

        memory: KB by Slurm job. A job of several users has one record for each; the sum is over all
        of them. If no process has memory of its own, the first one gets all.
        """
        before, self._known = self._known, {}
        # By index: job and number of the record in the job, and KB of the processes.
        records: dict[int, tuple[tuple[int, int], int]] = {}
        numbers: dict[int, int] = {}
        totals: dict[int, int] = {}
        for index, job in enumerate(jobs):
            if not job.epoch and job.job in memory:
                number = numbers[job.job] = numbers.get(job.job, 0) + 1
                known = before.get((job.job, number))
                if known is not None and known.processes == job.processes:
                    size = known.size
                else:
                    size = sum(process.resident_memory for process in job.processes)
                records[index] = (job.job, number), size
                totals[job.job] = totals.get(job.job, 0) + size
        # By job: KB of the processes so far, and KB given to them. So no remainder is lost.
        done: dict[int, tuple[int, int]] = {}
        scaled = [*jobs]
        for index, (key, size) in records.items():
            job, total, wanted = jobs[index], totals[key[0]], memory[key[0]]
            if total == wanted:
                continue
            seen, given = done.get(key[0], (0, 0))
            basis = total, wanted, seen, given
            known = before.get(key)
            if known is None or known.basis != basis or known.processes != job.processes:
                processes, given = _scale(job.processes, *basis)
                known = _Scaled(job.processes, size, basis, processes, given)
            self._known[key] = known
            done[key[0]] = seen + size, known.given
            scaled[index] = structs.replace(job, processes=known.scaled)
        return scaled


class _Scaled(NamedTuple):
    """A record's processes, their KB in sum, and the scaled processes.

    basis: KB of the job's processes and of its control group, and KB of earlier records: of their
    processes, and given to them. given: KB given with this record.
    """

    processes: list[SampleProcess]
    size: int
    basis: tuple[int, int, int, int]
    scaled: list[SampleProcess]
    given: int


def _scale(
    processes: list[SampleProcess], total: int, wanted: int, seen: int, given: int
) -> tuple[list[SampleProcess], int]:
    """Return scaled processes, and KB given so far."""
    scaled: list[SampleProcess] = []
    for process in processes:
        size = process.resident_memory
        if total:
            seen += size
            share = seen * wanted // total - given
        else:
            share = 0 if given or process.pid >= FIRST_PID_OF_ENDED else wanted
        given += share
        scaled.append(process if share == size else structs.replace(process, resident_memory=share))
    return scaled, given


def parse_pss(content: bytes) -> int:
    """Return the Pss of /proc/PID/smaps_rollup in KB. Raise UnparsableError if it is invalid."""
    match = _PSS.search(content)
    if match is None:
        raise UnparsableError(f"no Pss: {content[:80]!r}")
    size = int(match[1])
    if size > LARGEST_UINT:
        raise UnparsableError(f"Pss is out of range: {size}")
    return size


class JobPss:
    """Sums of the proportional set size of each Slurm job: shared pages are divided.

    The kernel walks all pages of a process to compute it, so it is read only on demand. A job with
    a process that can't be read has no sum.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def read(self, node: Node, processes: list[Process], errors: list[str]) -> dict[int, int]:
        """Return KB by job. Append a message to `errors` for each file that can't be parsed."""
        sums: dict[int, int] = {}
        denied: set[int] = set()
        for process in processes:
            job = process.job
            if not job or job in denied or process.is_ended:
                continue
            path = f"proc/{process.pid}/smaps_rollup"
            try:
                content = node.read(path)
                if content:  # the process has exited
                    sums[job] = sums.get(job, 0) + parse_pss(content)
            except NotPermittedError as error:
                denied.add(job)
                self._warn(node, error)
            except (NotHereError, VanishedError):
                continue  # the process has ended, or the kernel is older than 4.14
            except CcagentError as error:
                denied.add(job)
                errors.append(f"/{path}: {error}")
        return {job: size for job, size in sums.items() if job not in denied}

    def _warn(self, node: Node, error: CcagentError) -> None:
        if not self._has_warned:
            from ccagent.machine.parsed import read_lack

            self._has_warned = True
            logger.warning(
                "agent sample: job-pss: %s; jobs of other users are omitted: %s",
                error,
                read_lack(node, "CAP_SYS_PTRACE"),
            )


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
