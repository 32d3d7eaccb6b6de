"""Reading of one round of KPIs, of the node and of each application."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.fast.kpis.control_groups import Groups, find_own_groups, read_groups
from ccagent.agents.fast.kpis.node_kpis import NodeKpis
from ccagent.agents.fast.kpis.process_tree import list_tree, read_tree
from ccagent.agents.fast.messages.kpi_names import (
    APPLICATION_CPU,
    APPLICATION_MEMORY,
    COMMUNICATION,
    KPIS,
    NODE_INTERCONNECT,
    RUNTIME,
)
from ccagent.errors import CcagentError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccagent.agents.fast.kpis.applications import MonitoredApplication
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node

_GROUPS_KNOWN_FOR = 60.0

KpiValues = dict[str, float | str]


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
        needed = chosen | {NODE_INTERCONNECT} if COMMUNICATION in chosen else chosen
        values = self._node_kpis.read(node, needed)
        traffic = values.get(NODE_INTERCONNECT)
        if COMMUNICATION in chosen and isinstance(traffic, float):
            values[COMMUNICATION] = level(
                traffic, self._settings.communication_medium, self._settings.communication_high
            )
        cpus = _count_cpus(node)
        before, self._before = self._before, {}
        found = [
            ApplicationKpiValues(each, self._application(node, each, chosen, cpus, before))
            for each in applications
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
            if APPLICATION_CPU in chosen and old is not None and old.source == source:
                seconds = now - old.moment
                if seconds > 0:
                    share = 100.0 * max(0, cpu - old.cpu) / (seconds * 1e9 * cpus)
                    values[APPLICATION_CPU] = round(share, 3)
        if APPLICATION_MEMORY in chosen and memory is not None:
            values[APPLICATION_MEMORY] = float(memory)
        if RUNTIME in chosen and application.start is not None:
            age = node.clock.uptime() - application.start / node.clock_ticks
            settings = self._settings
            values[RUNTIME] = level(
                age, settings.runtime_medium.seconds, settings.runtime_high.seconds
            )
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


MonitoredKey = tuple[str, int, str]


def level(value: float, medium: float, high: float) -> str:
    """Return `high`, `medium` or `low`."""
    if value >= high:
        return "high"
    return "medium" if value >= medium else "low"


def _count_cpus(node: Node) -> int:
    """Return the number of online CPUs; 100 % are all of them."""
    try:
        online = read_parsed(node, "sys/devices/system/cpu/online", parse_cpu_list)
    except CcagentError:
        return 1
    return max(1, len(online))
