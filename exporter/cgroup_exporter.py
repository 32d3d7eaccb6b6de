"""Job metrics under the names of cgroup_exporter 1.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge
from ccagent.exporter.job_metrics import is_version_2
from ccagent.machine.cgroup.jobs import ROOT
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.sources import JobOnNode
    from ccagent.machine.node import Node

_NO_LIMIT_V1 = 9223372036854771712
_NO_LIMIT_V2 = float(2**64)

_TIMES = (
    ("cpu_user", counter("cgroup_cpu_user_seconds", "Cumulative CPU user seconds", "cgroup")),
    ("cpu_system", counter("cgroup_cpu_system_seconds", "Cumulative CPU system seconds", "cgroup")),
    ("cpu_time", counter("cgroup_cpu_total_seconds", "Cumulative CPU seconds", "cgroup")),
)
_CPUS = gauge("cgroup_cpus", "Number of CPUs in the cgroup", "cgroup")
_CPU_INFO = gauge("cgroup_cpu_info", "CPUs of the cgroup", "cgroup", "cpus")
_RSS = gauge("cgroup_memory_rss_bytes", "Memory RSS used in bytes", "cgroup")
_CACHE = gauge("cgroup_memory_cache_bytes", "Memory cache used in bytes", "cgroup")
_USED = gauge("cgroup_memory_used_bytes", "Memory used in bytes", "cgroup")
_TOTAL = gauge("cgroup_memory_total_bytes", "Memory given to the cgroup in bytes", "cgroup")
_FAILURES = gauge("cgroup_memory_fail_count", "Memory fail count", "cgroup")
_SWAP = gauge("cgroup_memsw_used_bytes", "Swap used in bytes", "cgroup")
_SWAP_TOTAL = gauge("cgroup_memsw_total_bytes", "Swap given to the cgroup in bytes", "cgroup")
_SWAP_FAILURES = gauge("cgroup_memsw_fail_count", "Swap fail count", "cgroup")
_INFO = gauge("cgroup_info", "User and job of the cgroup", "cgroup", "username", "uid", "jobid")
_PRESSURES = {
    resource: counter(
        f"cgroup_{resource}_pressure_seconds_total",
        f"Total time of {resource} pressure in seconds", "cgroup", "type",
    )
    for resource in ("cpu", "memory", "io")
}  # fmt: skip


class CgroupExporterCollector(Collector):
    """Job metrics as cgroup_exporter exposes them."""

    name = "cgroups"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the control groups of jobs. Raise NotHereError if Slurm has created none."""
        jobs, _ = self.sources.jobs.get(node)
        names: dict[int, Labels] = {each.job: (name_group(each.group),) for each in jobs}
        for field, family in _TIMES:
            yield family, self._rows(jobs, names, field, 1e9)
        yield from self._cpus(node, jobs, names)
        yield _RSS, [(names[each.job], rss) for each in jobs if (rss := find_rss(each)) is not None]
        for family, field in (
            (_CACHE, "mem_file"), (_USED, "mem_used"), (_FAILURES, "mem_failures"),
            (_SWAP, "swap_used"), (_SWAP_FAILURES, "swap_failures"),
        ):  # fmt: skip
            yield family, self._rows(jobs, names, field)
        yield _TOTAL, [(names[each.job], limit_of(each, each.counters.mem_limit)) for each in jobs]
        yield (
            _SWAP_TOTAL,
            [
                (names[each.job], limit_of(each, each.counters.swap_limit))
                for each in jobs
                if each.counters.swap_used is not None
            ],
        )
        for resource, family in _PRESSURES.items():
            rows: list[tuple[Labels, float]] = []
            for each in jobs:
                for extent, suffix in (("some", ""), ("full", "_full")):
                    value = getattr(each.counters, f"pressure_{resource}{suffix}")
                    if value is not None:
                        rows.append(((*names[each.job], extent), value / 1e6))
            yield family, rows
        yield (
            _INFO,
            [
                ((*names[each.job], each.identity.user, str(each.identity.uid), str(each.job)), 1)
                for each in jobs
            ],
        )

    @staticmethod
    def _rows(
        jobs: list[JobOnNode], names: dict[int, Labels], field: str, divisor: float = 1
    ) -> Rows:
        return [
            (names[each.job], value if divisor == 1 else value / divisor)
            for each in jobs
            if (value := getattr(each.counters, field)) is not None
        ]

    def _cpus(
        self, node: Node, jobs: list[JobOnNode], names: dict[int, Labels]
    ) -> Iterator[tuple[Family, Rows]]:
        numbers: list[tuple[Labels, float]] = []
        lists: list[tuple[Labels, float]] = []
        for each in jobs:
            path = each.group
            if not is_version_2(path):
                path = f"{ROOT}/cpuset{name_group(path)}"
            try:
                cpus = read_parsed(node, f"{path}/cpuset.cpus", parse_cpu_list)
            except CcagentError:
                cpus = []
            numbers.append((names[each.job], len(cpus)))
            lists.append(((*names[each.job], ",".join(map(str, cpus))), 1))
        yield _CPUS, numbers
        yield _CPU_INFO, lists


def name_group(path: str) -> str:
    """Return the path of a control group below its hierarchy's root: `/slurm/uid_1/job_2`."""
    rest = path.removeprefix(f"{ROOT}/")
    if is_version_2(path):
        return f"/{rest}"
    return "/" + rest.partition("/")[2]


def find_rss(each: JobOnNode) -> int | None:
    """Return RSS in B as cgroup_exporter defines it: on version 2 with swap and page cache."""
    counters = each.counters
    if not is_version_2(each.group):
        return counters.mem_anon
    if counters.mem_anon is None:
        return None
    return counters.mem_anon + (counters.mem_swapcached or 0) + (counters.mem_file or 0)


def limit_of(each: JobOnNode, limit: int | None) -> float:
    """Return a limit in B. Without one return the number of the kernel or of cgroup_exporter."""
    if limit is not None:
        return limit
    return _NO_LIMIT_V2 if is_version_2(each.group) else _NO_LIMIT_V1
