"""Reader of Slurm jobs on this node, from their cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
)
from ccagent.agents.metrics.readers.job_memory import JobMemory
from ccagent.agents.metrics.readers.job_shares import JobShares, ShareScope, share_metrics
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.counters import NEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.metrics.readers.base import ScopeType
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_GAUGES = frozenset({
    "job_mem_used", "job_mem_peak", "job_mem_limit", "job_mem_rss", "job_mem_anon",
    "job_mem_shmem", "job_mem_file", "job_oom_kills",
})  # fmt: skip
_NS_PERCENT, _US_PERCENT = 100 / 1e9, 100 / 1e6


def _metric(unit: str, scale: float, description: str, source: str) -> Metric:
    return Metric(unit=unit, type="node", description=description, source=source, scale=scale)


class CgroupJobsSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.cgroup-jobs]."""

    scope: Annotated[
        ShareScope,
        Meta(
            description="also send shares of the parts that a job has for itself, as"
            " cc-metric-store can keep them: cgroup_*"
        ),
    ] = "none"


class CgroupJobsReader(Reader[CgroupJobsSettings]):
    """Memory, CPU, I/O and pressure of each Slurm job on this node: `stype=job`."""

    name = "cgroup-jobs"
    Settings = CgroupJobsSettings
    of_jobs: ClassVar[dict[str, Metric]] = {
        "job_mem_used": _metric(
            "B", 1, "memory charged against the job's limit, including page cache",
            "memory.current; v1: memory.usage_in_bytes",
        ),
        "job_mem_peak": _metric(
            "B", 1, "peak of job_mem_used",
            "memory.peak, since Linux 5.19; v1: memory.max_usage_in_bytes",
        ),
        "job_mem_rss": _metric(
            "B", 1, "anonymous and shared memory of the job, without file cache",
            "memory.stat: anon + shmem; v1: total_rss + total_shmem",
        ),
        "job_mem_anon": _metric(
            "B", 1, "anonymous memory: heap, stacks, private mappings",
            "memory.stat: anon; v1: total_rss",
        ),
        "job_mem_shmem": _metric(
            "B", 1, "shared memory and files on tmpfs, /dev/shm for example",
            "memory.stat: shmem; v1: total_shmem, since Linux 4.13",
        ),
        "job_mem_file": _metric(
            "B", 1, "page cache including job_mem_shmem; the rest is reclaimable",
            "memory.stat: file; v1: total_cache",
        ),
        "job_mem_limit": _metric(
            "B", 1, "memory limit of the job, if set",
            "memory.max; v1: memory.limit_in_bytes",
        ),
        "job_cpu_util": _metric(
            "%", _NS_PERCENT, "CPU time; 100 is one fully used hwthread",
            "cpu.stat: usage_usec; v1: cpuacct.usage",
        ),
        "job_cpu_throttled": _metric(
            "%", _NS_PERCENT, "time throttled by the job's CPU quota, summed over hwthreads",
            "cpu.stat: throttled_usec; v1: throttled_time",
        ),
        "job_oom_kills": _metric(
            "", 1, "total OOM kills of the job's processes",
            "memory.events: oom_kill; v1: memory.oom_control of the job, its steps and tasks",
        ),
        "job_io_read": _metric(
            "B/s", 1, "read from block devices, not from network file systems",
            "io.stat: rbytes; v1: blkio.throttle.io_service_bytes_recursive",
        ),
        "job_io_write": _metric(
            "B/s", 1, "written to block devices, not to network file systems",
            "io.stat: wbytes; v1: blkio.throttle.io_service_bytes_recursive",
        ),
        "job_pressure_cpu": _metric(
            "%", _US_PERCENT, "share of time in which some task of the job waits for a CPU",
            "cpu.pressure: some",
        ),
        "job_pressure_memory": _metric(
            "%", _US_PERCENT, "share of time in which some task of the job waits for memory",
            "memory.pressure: some",
        ),
        "job_pressure_io": _metric(
            "%", _US_PERCENT, "share of time in which some task of the job waits for block I/O",
            "io.pressure: some",
        ),
    }  # fmt: skip
    metrics: ClassVar[dict[str, Metric]] = of_jobs | share_metrics(of_jobs)

    def __init__(self, settings: CgroupJobsSettings | None = None) -> None:
        super().__init__(settings)
        self._jobs = JobCgroups()
        self.memory = JobMemory()
        scope = self.settings.scope
        self._shares = None if scope == "none" else JobShares(scope, self.of_jobs)
        if self._shares is None:
            reason = "agents.metrics.cgroup-jobs.scope is 'none'"
            self.absent = dict.fromkeys(share_metrics(self.of_jobs), reason)

    def checks(self, node: Node) -> Iterator[Check]:
        """Return the checks of control groups."""
        from ccagent.machine.cgroup.checks import check_cgroups

        return check_cgroups(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the cgroups of each job. Raise NotHereError if Slurm has created none."""
        jobs = self._jobs.read(node)
        self.errors = self._jobs.errors
        self.memory.note(jobs, node.clock.time())
        values = list(make_job_values(jobs))
        if self._shares is not None:
            values += self._shares.share(node, values, self.wanted)
            self.errors = [*self.errors, *self._shares.errors]
        return values

    def describe(self) -> dict[str, Any]:
        """Return samples and peaks of running jobs."""
        return {"jobs": self.memory.describe()}

    def list_pending(self, node: Node) -> dict[str, ScopeType]:  # noqa: ARG002
        """Return the shares; they are also sent while no job runs."""
        scope = self.settings.scope
        return {} if scope == "none" else dict.fromkeys(share_metrics(self.of_jobs), scope)


def make_job_values(jobs: dict[int, JobCounters]) -> Iterator[Gauge | Count]:
    """Yield the metrics of jobs. The sum over a changed set of cgroups is not a counter."""
    for job, counters in jobs.items():
        scope = Scope("node", "", "job", str(job))
        for metric, field in _FIELDS.items():
            value = getattr(counters, field)
            if value is None:
                continue
            if metric in _GAUGES:
                yield Gauge(metric, value, scope)
            elif counters.is_continued:
                yield Count(metric, value, scope, NEW if counters.is_new else 0)


_FIELDS = {
    metric: "cpu_time" if metric == "job_cpu_util" else metric.removeprefix("job_")
    for metric in CgroupJobsReader.of_jobs
}
"""Field of JobCounters by metric."""
