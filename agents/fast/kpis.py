"""KPIs: reading of one round, of the node and of each application, and their points."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.fast.applications import (
    Groups,
    find_own_groups,
    list_tree,
    read_groups,
    read_tree,
)
from ccagent.agents.fast.messages.structures import (
    APPLICATION_CPU,
    APPLICATION_MEMORY,
    COMMUNICATION,
    COMPUTE,
    ENERGY,
    INPUT_OUTPUT,
    KPIS,
    NODE_CPU,
    NODE_INTERCONNECT,
    NODE_MEMORY,
    NODE_MEMORY_BANDWIDTH,
    RUNTIME,
    ApplicationKpis,
    ApplicationStatus,
)
from ccagent.agents.metrics.outputs import PacedReader
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.base import NODE
from ccagent.agents.metrics.readers.cpu import CpuReader, CpuSettings
from ccagent.agents.metrics.readers.disk import DiskReader
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.agents.metrics.readers.memory import MemoryReader
from ccagent.agents.metrics.readers.network import NetworkReader
from ccagent.agents.metrics.readers.nfs import NfsReader
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.cgroup.files import parse_amount
from ccagent.machine.cpus import read_online
from ccagent.machine.parsed import read_parsed
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ccagent.agents.fast.applications import MonitoredApplication
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.agents.metrics.readers.base import Reader
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_ROOT = "sys/fs/resctrl"
_NO_GROUPS = frozenset({"info", "mon_data", "mon_groups"})
_MOST_GROUPS = 1000
_METRICS = frozenset({
    "mem_used", "cpu_idle", "cpu_iowait", "ib_recv", "ib_xmit", "net_bw", "disk_read", "disk_write",
    "nfs3_read", "nfs3_write", "nfs4_read", "nfs4_write", "cpu_power", "mem_power", "mem_bw",
})  # fmt: skip
"""The metrics behind the KPIs of the node. Those of each reader are summed up."""
_LEVEL_SOURCES = {
    COMMUNICATION: (NODE_INTERCONNECT, "communication"),
    COMPUTE: (NODE_CPU, "compute"),
    INPUT_OUTPUT: (INPUT_OUTPUT, "io"),
    ENERGY: (ENERGY, "energy"),
}
"""The value behind a level of the node, and the first word of the keys of its thresholds."""
_GROUPS_KNOWN_FOR = 60.0
KpiValues = dict[str, float | str]
MonitoredKey = tuple[str, int, str]

_LEVELS = {"low": 1.0, "medium": 2.0, "high": 3.0}
"""Numbers for low, medium and high."""

_MOST_VALUES = 10_000
_MOST_JOBS = 1000
_LONGEST_NAME = 64
_OTHERS = re.compile(r"[^a-z0-9]+")


def read_bandwidth_counter(node: Node) -> int | None:
    """Return the total B of memory traffic of all L3 caches; None if not counted (resctrl).

    The counter of a control group includes its monitoring groups. Source:
    Documentation/filesystems/resctrl.rst of Linux.
    """
    try:
        names = [name for name in node.directories(_ROOT) if name not in _NO_GROUPS]
    except CcagentError:
        return None
    counters: list[int] = []
    for group in [_ROOT, *(f"{_ROOT}/{name}" for name in names)][:_MOST_GROUPS]:
        for cache in node.list_names(f"{group}/mon_data"):
            if cache.startswith("mon_L3_"):
                path = f"{group}/mon_data/{cache}/mbm_total_bytes"
                with suppress(CcagentError):  # `Unavailable`, or the group was just removed
                    counters.append(read_parsed(node, path, parse_amount))
    return sum(counters) if counters else None


class NodeKpis:
    """Reads each KPI from its first available source."""

    def __init__(self) -> None:
        self._readers = {
            reader.name: PacedReader(reader, "agent fast")
            for reader in (
                CpuReader(CpuSettings(types=("node",))), MemoryReader(), InfinibandReader(),
                NetworkReader(), DiskReader(), NfsReader(), PowerReader(), PerfReader(),
            )
        }  # fmt: skip
        for paced in self._readers.values():
            paced.reader.wanted = _METRICS
        self._bandwidth_before: tuple[int, float] | None = None
        self._has_infiniband = False

    def read(self, node: Node, wanted: Collection[str]) -> dict[str, float | str]:
        """Return the available wanted KPIs; shares and rates are those since the last call.

        `INPUT_OUTPUT` is in B/s and `ENERGY` in W here, not yet a level.
        """
        kpis: dict[str, float | str] = {}
        if NODE_MEMORY in wanted and (used := self._values(node, MemoryReader)):
            kpis[NODE_MEMORY] = used["mem_used"]
        if NODE_CPU in wanted and (shares := self._values(node, CpuReader)):
            kpis[NODE_CPU] = round(max(0.0, 100.0 - sum(shares.values())), 3)
        if NODE_MEMORY_BANDWIDTH in wanted:
            bandwidth = self._read_bandwidth(node)
            if bandwidth is not None:
                kpis[NODE_MEMORY_BANDWIDTH] = round(bandwidth, 1)
        if NODE_INTERCONNECT in wanted:
            network = self._values(node, NetworkReader)
            infiniband = self._values(node, InfinibandReader)
            # Once without a rate, InfiniBand is not replaced by the slower network.
            self._has_infiniband = self._has_infiniband or bool(infiniband)
            if traffic := infiniband if self._has_infiniband else network:
                kpis[NODE_INTERCONNECT] = round(sum(traffic.values()), 1)
        if INPUT_OUTPUT in wanted and (
            transfers := [
                *self._values(node, DiskReader).values(), *self._values(node, NfsReader).values()
            ]
        ):  # fmt: skip
            kpis[INPUT_OUTPUT] = sum(transfers)
        if ENERGY in wanted and (powers := self._values(node, PowerReader)):
            kpis[ENERGY] = sum(powers.values())
        return kpis

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of /proc and of hardware counters; other KPIs have two sources."""
        for check in self._readers[MemoryReader.name].reader.checks(node):
            yield check._replace(impact="all KPIs of the node", is_vital=True)
        for check in self._readers[PerfReader.name].reader.checks(node):
            yield check._replace(impact=NODE_MEMORY_BANDWIDTH, is_vital=False)

    def close(self) -> None:
        """Close the open counters."""
        for paced in self._readers.values():
            paced.reader.close()

    def _read_bandwidth(self, node: Node) -> float | None:
        if counted := self._values(node, PerfReader):
            return counted["mem_bw"]
        counter = read_bandwidth_counter(node)
        now = node.clock.monotonic()
        before = self._bandwidth_before
        self._bandwidth_before = None if counter is None else (counter, now)
        if counter is None or before is None or now <= before[1]:
            return None
        return max(0, counter - before[0]) / (now - before[1])

    def _values(self, node: Node, kind: type[Reader[Any]]) -> dict[str, float]:
        """Return the wanted metrics of the node by a reader; empty if the machine has none."""
        paced = self._readers[kind.name]
        values: dict[str, float] = {}
        for metric, value, scope in paced.values(node, paced.reader.metrics):
            # The memory traffic is counted by socket.
            if scope == NODE or (metric == "mem_bw" and scope.type == "socket"):
                values[metric] = values.get(metric, 0.0) + value
        return values


class KpiRound(NamedTuple):
    """The KPIs of one round. time: seconds since 1970."""

    time: float
    node: KpiValues
    applications: list[tuple[MonitoredApplication, KpiValues]]


class _Counted(NamedTuple):
    """CPU time at the previous round. source: its counter. moment: seconds of a steady clock."""

    source: str
    cpu: int
    moment: float


class KpiReader:
    """Reads rounds of KPIs. Rates and shares are those since the previous round."""

    def __init__(self, settings: FastSettings) -> None:
        self._settings = settings
        self._node_kpis = NodeKpis()
        self._before: dict[MonitoredKey, _Counted] = {}
        self._groups: dict[MonitoredKey, tuple[float, Groups]] = {}

    def read(
        self,
        node: Node,
        applications: Collection[MonitoredApplication],
        wanted: Collection[str] = (),
    ) -> KpiRound:
        """Return the wanted KPIs, all if none is named. Omit KPIs that the machine lacks."""
        chosen = set(wanted or KPIS)
        sources = {name: _LEVEL_SOURCES[name] for name in chosen & _LEVEL_SOURCES.keys()}
        values = self._node_kpis.read(node, chosen | {source for source, _ in sources.values()})
        for name, (source, key) in sources.items():
            value = values.get(source)
            if isinstance(value, float):
                medium = getattr(self._settings, f"{key}_medium")
                values[name] = level(value, medium, getattr(self._settings, f"{key}_high"))
        cpus = _count_cpus(node)
        before, self._before = self._before, {}
        found = [
            (application, self._application(node, application, chosen, cpus, before))
            for application in applications
        ]
        self._groups = {key: known for key, known in self._groups.items() if key in self._before}
        of_node: KpiValues = {
            name: values[name] for name in KPIS if name in values and name in chosen
        }
        return KpiRound(node.clock.time(), of_node, found)

    def close(self) -> None:
        """Close the open counters."""
        self._node_kpis.close()

    def _application(
        self,
        node: Node,
        application: MonitoredApplication,
        chosen: Collection[str],
        cpus: int,
        before: dict[MonitoredKey, _Counted],
    ) -> KpiValues:
        key = (application.job_id, application.process_id, application.vm_name)
        values: KpiValues = {}
        source, cpu, memory = self._usage(node, application, key)
        now = node.clock.monotonic()
        if cpu is not None:
            self._before[key] = _Counted(source, cpu, now)
            old = before.get(key)
            is_same = old is not None and old.source == source and now > old.moment
            if APPLICATION_CPU in chosen and old is not None and is_same:
                share = 100.0 * max(0, cpu - old.cpu) / ((now - old.moment) * 1e9 * cpus)
                values[APPLICATION_CPU] = round(share, 3)
        if APPLICATION_MEMORY in chosen and memory is not None:
            values[APPLICATION_MEMORY] = float(memory)
        if RUNTIME in chosen and application.start is not None:
            age = node.clock.uptime() - application.start / node.clock_ticks
            medium, high = self._settings.runtime_medium, self._settings.runtime_high
            values[RUNTIME] = level(age, medium.seconds, high.seconds)
        return {name: values[name] for name in KPIS if name in values}

    def _usage(
        self, node: Node, application: MonitoredApplication, key: MonitoredKey
    ) -> tuple[str, int | None, int | None]:
        """Return the source of the CPU time, the time in ns, and the memory in B."""
        groups = application.groups or self._own_groups(node, application.process_id, key)
        cpu, memory = read_groups(node, groups)
        source = "group"
        if application.process_id and (cpu is None or memory is None):
            usage = read_tree(node, list_tree(node, application.process_id))
            if cpu is None:
                source, cpu = "tree", usage.cpu
            if memory is None:
                memory = usage.memory
        return source, cpu, memory

    def _own_groups(self, node: Node, process: int, key: MonitoredKey) -> Groups:
        """Return the cgroups of a process alone; search them again every minute."""
        now = node.clock.monotonic()
        until, groups = self._groups.get(key, (0.0, {}))
        if now >= until:
            groups = find_own_groups(node, process, set(list_tree(node, process)))
            self._groups[key] = (now + _GROUPS_KNOWN_FOR, groups)
        return groups


def level(value: float, medium: float, high: float) -> str:
    """Return `high`, `medium` or `low`."""
    if value >= high:
        return "high"
    return "medium" if value >= medium else "low"


def _count_cpus(node: Node) -> int:
    """Return the number of online CPUs; 100 % are all of them."""
    try:
        online = read_online(node)
    except CcagentError:
        return 1
    return max(1, len(online))


def kpi_points(node: Node, kpis: KpiRound) -> Iterator[Point]:
    """Yield the points of a round: of the node, and of each job (`stype=job`) or machine (`vm`)."""
    tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
    yield from _points(Tags(tags), kpis.node, kpis.time)
    for application, values in kpis.applications:
        if application.job_id:
            more = {"stype": "job", "stype-id": application.job_id}
        else:
            more = {"stype": "vm", "stype-id": application.vm_name}
        yield from _points(Tags(tags | more), values, kpis.time)


def _points(tags: Tags, values: KpiValues, time: float) -> Iterator[Point]:
    for name, value in values.items():
        number = _LEVELS.get(value) if isinstance(value, str) else value
        if number is not None:
            yield Point(KPIS[name], tags, number, time)


def metric_name(kpi: str) -> str:
    """Return the metric name for an application's KPI; empty if no valid character is left."""
    name = _OTHERS.sub("_", kpi.casefold()).strip("_")[:_LONGEST_NAME]
    return f"fast_app_{name}" if name else ""


class ApplicationRelay:
    """Holds the messages of applications until the next sample."""

    def __init__(self) -> None:
        self.statuses: dict[str, ApplicationStatus] = {}
        """Last statuses of applications, by job; replaced, never changed: threads iterate it."""
        self._values: dict[tuple[str, str], tuple[float, float]] = {}
        self._lock = threading.Lock()

    def add(self, message: ApplicationStatus | ApplicationKpis, job: str, time: float) -> None:
        """Accept a message for the job of its topic; refuse a message for another job."""
        if message.job != job:
            logger.warning(
                "agent fast: job %s sends a message for job %s; refused", job, message.job,
                key="fast message for another job",
            )  # fmt: skip
            return
        with self._lock:
            if isinstance(message, ApplicationStatus):
                others = [known for known in self.statuses.items() if known[0] != job]
                self.statuses = dict([*others[1 - _MOST_JOBS :], (job, message)])
                return
            for kpi, value in message.values.items():
                name = metric_name(kpi)
                if name and not isinstance(value, str) and len(self._values) < _MOST_VALUES:
                    self._values[job, name] = (value, time)

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget the statuses of all other jobs."""
        with self._lock:
            here = {*jobs}
            self.statuses = {job: status for job, status in self.statuses.items() if job in here}

    def take(self, node: Node) -> list[Point]:
        """Return and forget the latest values since the last call."""
        with self._lock:
            values, self._values = self._values, {}
        tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
        return [
            Point(name, tags | {"stype": "job", "stype-id": job}, value, time)
            for (job, name), (value, time) in values.items()
        ]
