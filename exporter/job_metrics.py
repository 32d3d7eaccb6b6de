"""Jobs under ccagent's own metric names: CPU time, memory, I/O, pressure and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.sources import JobOnNode
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.node import Node

_JOBS = gauge("ccagent_jobs", "Jobs of Slurm on this node.")
_LEFT_OUT = gauge(
    "ccagent_jobs_left_out", "Jobs on this node without series of their own: max-jobs is reached."
)
_INFO = gauge(
    "ccagent_job_info",
    "Always 1: the owner of the job; account, partition and name from the job's environment.",
    "jobid", "user", "account", "partition", "name",
)  # fmt: skip
_PROCESSES = gauge("ccagent_job_processes", "Processes of the job on this node.", "jobid")

_VALUES: tuple[tuple[str, Family, float], ...] = (
    (
        "cpu_time",
        counter("ccagent_job_cpu_seconds_total", "CPU time of the job on this node.", "jobid"),
        1e9,
    ),
    (
        "cpu_user",
        counter("ccagent_job_cpu_user_seconds_total", "CPU time in user mode.", "jobid"),
        1e9,
    ),
    (
        "cpu_system",
        counter("ccagent_job_cpu_system_seconds_total", "CPU time in the kernel.", "jobid"),
        1e9,
    ),
    (
        "cpu_throttled",
        counter(
            "ccagent_job_cpu_throttled_seconds_total",
            "Time for which the job's quota stopped it, summed over hwthreads.",
            "jobid",
        ),
        1e9,
    ),
    ("cpus", gauge("ccagent_job_cpus", "Hwthreads that the job may use.", "jobid"), 1),
    (
        "mem_used",
        gauge(
            "ccagent_job_memory_used_bytes",
            "Memory that counts towards the job's limit, its page cache included.",
            "jobid",
        ),
        1,
    ),
    (
        "mem_peak",
        gauge(
            "ccagent_job_memory_peak_bytes",
            "Maximum of ccagent_job_memory_used_bytes.",
            "jobid",
        ),
        1,
    ),
    (
        "mem_rss",
        gauge(
            "ccagent_job_memory_rss_bytes",
            "Memory that the job's programs hold: anonymous and shared, no cache of files.",
            "jobid",
        ),
        1,
    ),
    (
        "mem_file",
        gauge("ccagent_job_memory_cache_bytes", "Page cache of the job, tmpfs included.", "jobid"),
        1,
    ),
    (
        "mem_limit",
        gauge("ccagent_job_memory_limit_bytes", "Memory that the job may use.", "jobid"),
        1,
    ),
    (
        "oom_kills",
        counter(
            "ccagent_job_oom_kills_total",
            "Processes of the job that the kernel's OOM killer has killed.",
            "jobid",
        ),
        1,
    ),
    (
        "io_read",
        counter(
            "ccagent_job_io_read_bytes_total",
            "Read from block devices, hence not from network file systems.",
            "jobid",
        ),
        1,
    ),
    (
        "io_write",
        counter(
            "ccagent_job_io_written_bytes_total",
            "Written to block devices, hence not to network file systems.",
            "jobid",
        ),
        1,
    ),
)
_SWAP = gauge("ccagent_job_memory_swap_bytes", "Swap space that the job uses.", "jobid")
_WAITING = counter(
    "ccagent_job_pressure_waiting_seconds_total",
    "Time in which a task of the job waited for the resource: cpu, memory, io.",
    "jobid", "resource",
)  # fmt: skip
_STALLED = counter(
    "ccagent_job_pressure_stalled_seconds_total",
    "Time in which no task of the job worked, since some waited for the resource.",
    "jobid", "resource",
)  # fmt: skip
_RESOURCES = ("cpu", "memory", "io")


class JobCollector(Collector):
    """Counters of the control groups of Slurm's jobs. The series of a job end with the job."""

    name = "jobs"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the control groups. Without jobs yield only the counts of jobs."""
        try:
            jobs, left_out = self.sources.jobs.get(node)
        except NotHereError:
            jobs, left_out = [], 0
        yield _JOBS, [((), len(jobs) + left_out)]
        yield _LEFT_OUT, [((), left_out)]
        labels = {each.job: (str(each.job),) for each in jobs}
        yield (
            _INFO,
            [
                ((*labels[each.job], i.user, i.account, i.partition, i.name), 1)
                for each in jobs
                for i in (each.identity,)
            ],
        )
        yield _PROCESSES, [(labels[each.job], len(each.pids)) for each in jobs]
        yield from counter_rows(_VALUES, jobs, labels)
        yield (
            _SWAP,
            [
                (labels[each.job], value)
                for each in jobs
                if (value := find_swap(each.counters, each.group)) is not None
            ],
        )
        for family, suffix in ((_WAITING, ""), (_STALLED, "_full")):
            rows: list[tuple[Labels, float]] = []
            for each in jobs:
                for resource in _RESOURCES:
                    value = getattr(each.counters, f"pressure_{resource}{suffix}")
                    if value is not None:
                        rows.append(((*labels[each.job], resource), value / 1e6))
            yield family, rows


def counter_rows(
    values: Iterable[tuple[str, Family, float]], jobs: list[JobOnNode], labels: Mapping[int, Labels]
) -> Iterator[tuple[Family, Rows]]:
    """Yield each family with the values of the jobs that have one.

    values: field of JobCounters, family, divisor. labels: by job id.
    """
    for field, family, divisor in values:
        found = ((labels[each.job], getattr(each.counters, field)) for each in jobs)
        yield (
            family,
            [
                (own, value if divisor == 1 else value / divisor)
                for own, value in found
                if value is not None
            ],
        )


def is_version_2(group: str) -> bool:
    """Return whether a job's control group directory belongs to version 2."""
    return "/system.slice/" in group


def find_swap(counters: JobCounters, group: str) -> int | None:
    """Return the used swap space in B. Version 1 counts memory and swap together."""
    if counters.swap_used is None or is_version_2(group):
        return counters.swap_used
    return max(0, counters.swap_used - (counters.mem_used or 0))
