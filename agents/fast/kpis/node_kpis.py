"""KPIs of the node, from the readers of the agent `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.fast.kpis.resctrl import read_bandwidth_counter
from ccagent.agents.fast.messages.kpi_names import (
    NODE_CPU,
    NODE_INTERCONNECT,
    NODE_MEMORY,
    NODE_MEMORY_BANDWIDTH,
)
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.base import NODE, Count, Gauge
from ccagent.agents.metrics.readers.cpu import CpuReader, CpuSettings
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.agents.metrics.readers.memory import MemoryReader
from ccagent.agents.metrics.readers.network import NetworkReader
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.counters import Rates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ccagent.agents.metrics.readers.base import Reader, Scope
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_TRIED_AGAIN_AFTER = 600.0
_IDLE = ("cpu_idle", "cpu_iowait")


class NodeKpis:
    """Reads each KPI from its first available source."""

    def __init__(self) -> None:
        self._cpu = CpuReader(CpuSettings(types=("node",)))
        self._memory = MemoryReader()
        self._infiniband = InfinibandReader()
        self._network = NetworkReader()
        self._perf = PerfReader()
        self._perf.wanted = frozenset({"mem_bw"})
        self._rates: dict[str, Rates[Scope]] = {}
        self._retry: dict[str, float] = {}
        self._bandwidth_before: tuple[int, float] | None = None

    def read(self, node: Node, wanted: Collection[str]) -> dict[str, float | str]:
        """Return the available wanted KPIs; shares and rates are those since the last call."""
        found: dict[str, float | str] = {}
        if NODE_MEMORY in wanted:
            used = self._values(node, self._memory).get("mem_used")
            if used is not None:
                found[NODE_MEMORY] = used
        if NODE_CPU in wanted:
            shares = self._values(node, self._cpu)
            if all(name in shares for name in _IDLE):
                busy = 100.0 - sum(shares[name] for name in _IDLE)
                found[NODE_CPU] = round(max(0.0, busy), 3)
        if NODE_MEMORY_BANDWIDTH in wanted:
            bandwidth = self._read_bandwidth(node)
            if bandwidth is not None:
                found[NODE_MEMORY_BANDWIDTH] = round(bandwidth, 1)
        if NODE_INTERCONNECT in wanted:
            traffic = self._read_traffic(node)
            if traffic is not None:
                found[NODE_INTERCONNECT] = round(traffic, 1)
        return found

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of /proc and of hardware counters; other KPIs have two sources."""
        for check in self._memory.checks(node):
            yield check._replace(impact="all KPIs of the node", is_vital=True)
        for check in self._perf.checks(node):
            yield check._replace(impact=NODE_MEMORY_BANDWIDTH, is_vital=False)

    def close(self) -> None:
        """Close the open counters."""
        for reader in (self._cpu, self._memory, self._infiniband, self._network, self._perf):
            reader.close()

    def _read_traffic(self, node: Node) -> float | None:
        values = self._tried(node, self._infiniband)
        if "ib_recv" in values and "ib_xmit" in values:
            return values["ib_recv"] + values["ib_xmit"]
        if self._infiniband.name not in self._retry:
            return None  # the first reading of InfiniBand has no rates yet
        return self._values(node, self._network).get("net_bw")

    def _read_bandwidth(self, node: Node) -> float | None:
        values = self._tried(node, self._perf)
        if "mem_bw" in values:
            return values["mem_bw"]
        counter = read_bandwidth_counter(node)
        now = node.clock.monotonic()
        before = self._bandwidth_before
        self._bandwidth_before = None if counter is None else (counter, now)
        if counter is None or before is None or now <= before[1]:
            return None
        return max(0, counter - before[0]) / (now - before[1])

    def _tried(self, node: Node, reader: Reader[Any]) -> dict[str, float]:
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
        found: dict[str, float] = {}
        counts: list[Count] = []
        for each in reader.read(node):
            if isinstance(each, Count):
                if each.scope == NODE:
                    counts.append(each)
            elif _is_of_node(each):
                found[each.metric] = found.get(each.metric, 0.0) + each.value
        rates = self._rates.setdefault(reader.name, Rates())
        now = node.clock.monotonic()
        return found | {metric: rate for metric, rate, _ in rates.of(counts, reader.metrics, now)}


def _is_of_node(gauge: Gauge) -> bool:
    return gauge.scope == NODE or gauge.scope.type == "socket"
