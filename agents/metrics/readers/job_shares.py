"""Metrics of jobs as shares of the hwthreads or sockets that a job has exclusively.

cc-metric-store has no scope for a job: of several values of a node it keeps only the last. It keeps
a value for each hwthread or socket, and cc-backend knows the hwthreads of each job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.errors import CcagentError, NotHereError, VanishedError
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.counters import Rates
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list, parse_topology_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ccagent.machine.node import Node

ShareScope = Literal["none", "hwthread", "socket"]

_CPUS = "sys/devices/system/cpu"
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
        online = node.read(f"{_CPUS}/online")
        if online == self._online:
            return
        part_of: dict[int, int] = {}
        for cpu in parse_cpu_list(online):
            part_of[cpu] = cpu
            if self._scope == "socket":
                path = f"{_CPUS}/cpu{cpu}/topology/physical_package_id"
                part_of[cpu] = max(0, read_parsed(node, path, parse_topology_id))
        of: Literal["socket", "hwthread"] = "socket" if self._scope == "socket" else "hwthread"
        self._part_of = part_of
        self._scopes = {part: Scope(of, str(part)) for part in part_of.values()}
        self._online = online
