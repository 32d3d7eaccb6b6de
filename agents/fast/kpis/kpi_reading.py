"""Reading of one round of KPIs, of the node and of each application."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.fast.kpis.processes import (
    Groups,
    find_own_groups,
    list_tree,
    read_groups,
    read_tree,
)
from ccagent.agents.fast.messages.kpi_names import (
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
)
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.base import NODE, Count
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
from ccagent.machine.counters import Rates
from ccagent.machine.cpus import read_online
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ccagent.agents.fast.kpis.applications import MonitoredApplication
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.agents.metrics.readers.base import Reader, Scope
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_ROOT = "sys/fs/resctrl"
_NO_GROUPS = frozenset({"info", "mon_data", "mon_groups"})
_MOST = 1000
_TRIED_AGAIN_AFTER = 600.0
_IDLE = ("cpu_idle", "cpu_iowait")
_TRANSFERS = (
    "disk_read", "disk_write", "nfs3_read", "nfs3_write", "nfs4_read", "nfs4_write",
)  # fmt: skip
_POWERS = ("cpu_power", "mem_power")
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
    for group in [_ROOT, *(f"{_ROOT}/{name}" for name in names)][:_MOST]:
        try:
            caches = node.list(f"{group}/mon_data")
        except CcagentError:
            continue
        for cache in caches:
            if cache.startswith("mon_L3_"):
                path = f"{group}/mon_data/{cache}/mbm_total_bytes"
                with suppress(CcagentError):  # `Unavailable`, or the group was just removed
                    counters.append(read_parsed(node, path, parse_amount))
    return sum(counters) if counters else None


class NodeKpis:
    """Reads each KPI from its first available source."""

    def __init__(self) -> None:
        self._cpu = CpuReader(CpuSettings(types=("node",)))
        self._memory = MemoryReader()
        self._infiniband = InfinibandReader()
        self._network = NetworkReader()
        self._disk = DiskReader()
        self._nfs = NfsReader()
        self._power = PowerReader()
        self._perf = PerfReader()
        self._perf.wanted = frozenset({"mem_bw"})
        self._rates: dict[str, Rates[Scope]] = {}
        self._retry: dict[str, float] = {}
        self._bandwidth_before: tuple[int, float] | None = None

    def read(self, node: Node, wanted: Collection[str]) -> dict[str, float | str]:
        """Return the available wanted KPIs; shares and rates are those since the last call.

        `INPUT_OUTPUT` is in B/s and `ENERGY` in W here, not yet a level.
        """
        kpis: dict[str, float | str] = {}
        if NODE_MEMORY in wanted:
            used = self._values(node, self._memory).get("mem_used")
            if used is not None:
                kpis[NODE_MEMORY] = used
        if NODE_CPU in wanted:
            shares = self._values(node, self._cpu)
            if all(name in shares for name in _IDLE):
                busy = 100.0 - sum(shares[name] for name in _IDLE)
                kpis[NODE_CPU] = round(max(0.0, busy), 3)
        if NODE_MEMORY_BANDWIDTH in wanted:
            bandwidth = self._read_bandwidth(node)
            if bandwidth is not None:
                kpis[NODE_MEMORY_BANDWIDTH] = round(bandwidth, 1)
        if NODE_INTERCONNECT in wanted:
            traffic = self._read_traffic(node)
            if traffic is not None:
                kpis[NODE_INTERCONNECT] = round(traffic, 1)
        return kpis | self._read_sums(node, wanted)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of /proc and of hardware counters; other KPIs have two sources."""
        for check in self._memory.checks(node):
            yield check._replace(impact="all KPIs of the node", is_vital=True)
        for check in self._perf.checks(node):
            yield check._replace(impact=NODE_MEMORY_BANDWIDTH, is_vital=False)

    def close(self) -> None:
        """Close the open counters."""
        for reader in (
            self._cpu, self._memory, self._infiniband, self._network, self._disk, self._nfs,
            self._power, self._perf,
        ):  # fmt: skip
            reader.close()

    def _read_sums(self, node: Node, wanted: Collection[str]) -> dict[str, float]:
        """Return the wanted KPIs that are sums of metrics; none if no metric has a value."""
        kpis: dict[str, float] = {}
        for kpi, metrics, readers in (
            (INPUT_OUTPUT, _TRANSFERS, (self._disk, self._nfs)),
            (ENERGY, _POWERS, (self._power,)),
        ):
            if kpi in wanted:
                values = [self._try_reader(node, reader) for reader in readers]
                if found := [each[name] for each in values for name in metrics if name in each]:
                    kpis[kpi] = sum(found)
        return kpis

    def _read_traffic(self, node: Node) -> float | None:
        values = self._try_reader(node, self._infiniband)
        if "ib_recv" in values and "ib_xmit" in values:
            return values["ib_recv"] + values["ib_xmit"]
        if self._infiniband.name not in self._retry:
            return None  # the first reading of InfiniBand has no rates yet
        return self._values(node, self._network).get("net_bw")

    def _read_bandwidth(self, node: Node) -> float | None:
        values = self._try_reader(node, self._perf)
        if "mem_bw" in values:
            return values["mem_bw"]
        counter = read_bandwidth_counter(node)
        now = node.clock.monotonic()
        before = self._bandwidth_before
        self._bandwidth_before = None if counter is None else (counter, now)
        if counter is None or before is None or now <= before[1]:
            return None
        return max(0, counter - before[0]) / (now - before[1])

    def _try_reader(self, node: Node, reader: Reader[Any]) -> dict[str, float]:
        """Read with a reader that many machines lack. After a failure, retry after ten minutes."""
        now = node.clock.monotonic()
        if now < self._retry.get(reader.name, 0.0):
            return {}
        try:
            values = self._read(node, reader)
        except CcagentError as error:
            logger.debug("agent fast: %s", error)
            self._retry[reader.name] = now + _TRIED_AGAIN_AFTER
            return {}
        if reader is self._perf and reader.absent.get("mem_bw"):
            reader.close()
            self._retry[reader.name] = now + _TRIED_AGAIN_AFTER
        else:
            self._retry.pop(reader.name, None)
        return values

    def _values(self, node: Node, reader: Reader[Any]) -> dict[str, float]:
        try:
            return self._read(node, reader)
        except CcagentError as error:
            logger.warning("agent fast: %s", error)
            return {}

    def _read(self, node: Node, reader: Reader[Any]) -> dict[str, float]:
        """Return the metrics of the node, or the sums over its sockets."""
        values: dict[str, float] = {}
        counts: list[Count] = []
        for value in reader.read(node):
            if isinstance(value, Count):
                counts += [value] if value.scope == NODE else []
            elif value.scope == NODE or value.scope.type == "socket":
                values[value.metric] = values.get(value.metric, 0.0) + value.value
        rates = self._rates.setdefault(reader.name, Rates())
        now = node.clock.monotonic()
        return values | {metric: rate for metric, rate, _ in rates.of(counts, reader.metrics, now)}


class ApplicationKpiValues(NamedTuple):
    """The KPIs of one application."""

    application: MonitoredApplication
    values: KpiValues


class KpiRound(NamedTuple):
    """The KPIs of one round. time: seconds since 1970."""

    time: float
    node: KpiValues
    applications: list[ApplicationKpiValues]


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
            ApplicationKpiValues(
                application, self._application(node, application, chosen, cpus, before)
            )
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
            tree = list_tree(node, application.process_id)
            usage = read_tree(node, tree)
            if cpu is None:
                source, cpu = "tree", usage.cpu if tree else None
            if memory is None and tree:
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
