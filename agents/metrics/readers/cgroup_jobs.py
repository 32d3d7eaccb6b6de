"""Reader of Slurm jobs on this node, from their cgroups.

cc-metric-store has no scope for a job: of several values of a node it keeps only the last. It keeps
a value for each hwthread or socket, and cc-backend knows the hwthreads of each job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, VanishedError
from ccagent.machine.cgroup.counters import JobCgroups, JobCounters
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.counters import NEW, Rates
from ccagent.machine.cpus import CPUS, read_socket
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ccagent.agents.metrics.readers.base import ScopeType
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


class JobMemory:
    """Samples and peaks of running jobs. Any thread may call `describe`."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[float, float, int, int | None]] = {}

    def note(self, jobs: dict[int, JobCounters], now: float) -> None:
        """Add a reading of all jobs and forget ended jobs. now: seconds since 1970."""
        found: dict[int, tuple[float, float, int, int | None]] = {}
        for job, counters in jobs.items():
            since, _, samples, peak = self._jobs.get(job, (now, now, 0, None))
            if counters.mem_rss is not None:
                peak = max(peak or 0, counters.mem_rss)
            found[job] = (since, now, samples + 1, peak)
        self._jobs = found

    def describe(self) -> dict[str, Any]:
        """Return by job: first and last sample, number of samples, and peak memory in B."""
        return {
            str(job): {"since": since, "last": last, "samples": samples, "memory_peak": peak}
            for job, (since, last, samples, peak) in self._jobs.items()
        }


ShareScope = Literal["none", "hwthread", "socket"]

_PREFIX = "cgroup_"
_DEFAULTS = frozenset({
    "job_cpu_util", "job_mem_used", "job_mem_rss", "job_mem_limit", "job_io_read", "job_io_write",
})  # fmt: skip


def share_name(metric: str) -> str:
    """Return the name of the shares of a metric of jobs: `cgroup_mem_used` of `job_mem_used`."""
    return _PREFIX + metric.removeprefix("job_")


def share_metrics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics of shares, by name. Shares of waiting time are not divided."""
    return {
        share_name(name): Metric(
            unit=metric.unit,
            type="hwthread",
            description=f"{name} of the job that has the hwthread exclusively"
            + (", divided by the job's hwthreads" if is_divided(name) else ""),
            source=f"{metric.source}; cpuset.cpus",
            aggregation="sum" if is_divided(name) else "mean",
            is_default=name in _DEFAULTS,
        )
        for name, metric in metrics.items()
    }


def is_divided(metric: str) -> bool:
    """Return whether a metric is divided among the hwthreads of a job; waiting time is not."""
    return not metric.startswith("job_pressure_")


class JobShares:
    """Divides metrics of jobs among their parts of the node.

    scope: type of the parts. metrics: metrics of jobs. errors: errors of the last reading.
    """

    def __init__(self, scope: ShareScope, metrics: dict[str, Metric]) -> None:
        self.errors: list[str] = []
        self._scope = scope
        self._metrics = metrics
        self._rates: Rates[Scope] = Rates()
        self._online = b""
        self._part_of: dict[int, int] = {}
        self._scopes: dict[int, Scope] = {}
        self._ready: set[str] = set()

    def share(
        self, node: Node, values: Iterable[Gauge | Count], wanted: Collection[str] | None
    ) -> list[Gauge]:
        """Return the shares of a reading of all jobs. wanted: names of shares, None for all."""
        self.errors = []
        try:
            cpus = self._read_cpus(node)
            self._read_parts(node)
        except CcagentError as error:
            self.errors.append(str(error))
            return []
        jobs = self._by_job(values, node.clock.monotonic())
        holders = self._holders(cpus)
        found: list[Gauge] = []
        for metric in self._metrics:
            name = share_name(metric)
            if (wanted is None or name in wanted) and self._is_ready(metric, cpus, jobs):
                found += self._divide(metric, name, cpus, jobs, holders)
        return found

    def _is_ready(
        self, metric: str, cpus: Mapping[int, frozenset[int]], jobs: dict[int, dict[str, float]]
    ) -> bool:
        """Return whether all jobs had the metric in some reading; series must start together."""
        if metric not in self._ready and cpus and all(metric in jobs.get(job, {}) for job in cpus):
            self._ready.add(metric)
        return metric in self._ready

    def _divide(
        self,
        metric: str,
        name: str,
        cpus: Mapping[int, frozenset[int]],
        jobs: dict[int, dict[str, float]],
        holders: dict[int, dict[int, int]],
    ) -> list[Gauge]:
        found: list[Gauge] = []
        for part, scope in self._scopes.items():
            own = holders.get(part, {})
            if not own:  # Without a value for a part without a job, sums over the node fail.
                found.append(Gauge(name, 0.0, scope))
                continue
            job, hwthreads = next(iter(own.items()))
            value = jobs.get(job, {}).get(metric)
            if len(own) == 1 and value is not None:
                share = hwthreads / len(cpus[job]) if is_divided(metric) else 1
                found.append(Gauge(name, value * share, scope))
        return found

    def _by_job(
        self, values: Iterable[Gauge | Count], moment: float
    ) -> dict[int, dict[str, float]]:
        counts: list[Count] = []
        jobs: dict[int, dict[str, float]] = {}
        for each in values:
            if isinstance(each, Count):
                counts.append(each)
            else:
                jobs.setdefault(int(each.scope.stype_id), {})[each.metric] = each.value
        for metric, rate, scope in self._rates.of(counts, self._metrics, moment):
            jobs.setdefault(int(scope.stype_id), {})[metric] = rate
        return jobs

    def _holders(self, cpus: Mapping[int, frozenset[int]]) -> dict[int, dict[int, int]]:
        """Return by part: the jobs with hwthreads of this part, and their number of hwthreads."""
        holders: dict[int, dict[int, int]] = {}
        for job, own in cpus.items():
            for cpu in own:
                part = self._part_of.get(cpu)
                if part is not None:
                    here = holders.setdefault(part, {})
                    here[job] = here.get(job, 0) + 1
        return holders

    def _read_cpus(self, node: Node) -> dict[int, frozenset[int]]:
        """Read the hwthreads of each job that is confined to a cpuset."""
        cpus: dict[int, frozenset[int]] = {}
        for each in job_directories(node, ("cpuset",)):
            try:
                own = frozenset(read_parsed(node, f"{each.path}/cpuset.cpus", parse_cpu_list))
            except (NotHereError, VanishedError):
                continue
            if own:
                cpus[each.job] = cpus.get(each.job, frozenset()) | own
        return cpus

    def _read_parts(self, node: Node) -> None:
        """Read the online hwthreads and their sockets after a change."""
        online = node.read(f"{CPUS}/online")
        if online == self._online:
            return
        part_of: dict[int, int] = {}
        for cpu in parse_cpu_list(online):
            part_of[cpu] = cpu
            if self._scope == "socket":
                part_of[cpu] = read_socket(node, cpu)
        of: Literal["socket", "hwthread"] = "socket" if self._scope == "socket" else "hwthread"
        self._part_of = part_of
        self._scopes = {part: Scope(of, str(part)) for part in part_of.values()}
        self._online = online


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
    is_exposed = False
    Settings = CgroupJobsSettings
    of_jobs: ClassVar[dict[str, Metric]] = {
        "job_mem_used": _metric("B", 1,
            "memory charged against the job's limit, including page cache",
            "memory.current; v1: memory.usage_in_bytes"),
        "job_mem_peak": _metric("B", 1, "peak of job_mem_used",
            "memory.peak, since Linux 5.19; v1: memory.max_usage_in_bytes"),
        "job_mem_rss": _metric("B", 1, "anonymous and shared memory of the job, without file cache",
            "memory.stat: anon + shmem; v1: total_rss + total_shmem"),
        "job_mem_anon": _metric("B", 1, "anonymous memory: heap, stacks, private mappings",
            "memory.stat: anon; v1: total_rss"),
        "job_mem_shmem": _metric("B", 1, "shared memory and files on tmpfs, /dev/shm for example",
            "memory.stat: shmem; v1: total_shmem, since Linux 4.13"),
        "job_mem_file": _metric("B", 1,
            "page cache including job_mem_shmem; the rest is reclaimable",
            "memory.stat: file; v1: total_cache"),
        "job_mem_limit": _metric("B", 1, "memory limit of the job, if set",
            "memory.max; v1: memory.limit_in_bytes"),
        "job_cpu_util": _metric("%", _NS_PERCENT, "CPU time; 100 is one fully used hwthread",
            "cpu.stat: usage_usec; v1: cpuacct.usage"),
        "job_cpu_throttled": _metric("%", _NS_PERCENT,
            "time throttled by the job's CPU quota, summed over hwthreads",
            "cpu.stat: throttled_usec; v1: throttled_time"),
        "job_oom_kills": _metric("", 1, "total OOM kills of the job's processes",
            "memory.events: oom_kill; v1: memory.oom_control of the job, its steps and tasks"),
        "job_io_read": _metric("B/s", 1, "read from block devices, not from network file systems",
            "io.stat: rbytes; v1: blkio.throttle.io_service_bytes_recursive"),
        "job_io_write": _metric("B/s", 1, "written to block devices, not to network file systems",
            "io.stat: wbytes; v1: blkio.throttle.io_service_bytes_recursive"),
        "job_pressure_cpu": _metric("%", _US_PERCENT,
            "share of time in which some task of the job waits for a CPU", "cpu.pressure: some"),
        "job_pressure_memory": _metric("%", _US_PERCENT,
            "share of time in which some task of the job waits for memory",
            "memory.pressure: some"),
        "job_pressure_io": _metric("%", _US_PERCENT,
            "share of time in which some task of the job waits for block I/O", "io.pressure: some"),
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
        from ccagent.machine.requirements import check_cgroups

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
