"""Metrics of the hardware's counters: clock, instructions, floating-point operations, memory.

Counted by Linux perf events, for all processes together, through perf_event_open(2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.perf.call import CYCLES, PerfCall, explained, read_paranoid
from ccagent.agents.metrics.perf.groups import Counters
from ccagent.agents.metrics.perf.plan import FLOPS, Lacks, Plan, total
from ccagent.agents.metrics.perf.pmu import find_pmus
from ccagent.agents.metrics.perf.tables import choose, identify
from ccagent.agents.metrics.readers.base import Gauge, Metric, Place, Reader, ReaderSettings
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.cpus import parse_cpu_list, parse_socket
from ccagent.machine.descriptors import raise_limit
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.metrics.perf.tables import Memory, Table
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_CPUS = "sys/devices/system/cpu"


class _Core(NamedTuple):
    """Counters of a hardware thread."""

    place: Place
    counters: Counters


class _Memory(NamedTuple):
    """Counters of the memory of a socket. weights: bytes of a count, by number of the event."""

    place: Place
    counters: Counters
    weights: list[tuple[int, float]]


class PerfReader(Reader[ReaderSettings]):
    """Reads the counters of all cores and memory controllers, which it keeps open."""

    name: ClassVar[str] = "perf"
    metrics: ClassVar[dict[str, Metric]] = {
        "clock": Metric(
            unit="Hz",
            type="hwthread",
            aggregation="mean",
            description="Clock rate while awake",
            source="perf: msr/aperf, msr/mperf, msr/tsc; on aarch64 cycles, CNT_CYCLES",
        ),
        "ipc": Metric(
            unit="",
            type="hwthread",
            aggregation="mean",
            description="Instructions retired in a cycle",
            source="perf: instructions, cycles",
        ),
        "flops_sp": Metric(
            unit="Flops/s",
            type="hwthread",
            description="Floating-point operations of single precision",
            source="perf: events of the processor",
        ),
        "flops_dp": Metric(
            unit="Flops/s",
            type="hwthread",
            description="Floating-point operations of double precision",
            source="perf: events of the processor",
        ),
        "flops_any": Metric(
            unit="Flops/s",
            type="hwthread",
            description="Floating-point operations: twice flops_dp and flops_sp, or all of them "
            "alike where the processor can't tell",
            source="perf: events of the processor",
        ),
        "mem_bw": Metric(
            unit="B/s",
            type="socket",
            description="Traffic of the main memory, read and written",
            source="perf: events of the memory controllers",
        ),
        "perf_counted": Metric(
            unit="%",
            type="node",
            aggregation="mean",
            description="Share of the time that the counters of cores were really counting",
            source="perf: time running, time enabled",
            is_default=False,
        ),
    }

    def __init__(
        self, settings: ReaderSettings | None = None, call: PerfCall | None = None
    ) -> None:
        super().__init__(settings)
        self._is_for_live = call is None
        self._call = call or PerfCall()
        self._online = b""
        self._plan: Plan | None = None
        self._cores: list[_Core] = []
        self._memory: list[_Memory] = []

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of hardware counters."""
        from ccagent.agents.metrics.perf.checks import require_counters

        yield require_counters(node)

    def read(self, node: Node) -> list[Gauge]:
        """Give what was counted since the last reading; nothing at the first, or with other cpus.

        Raises NotHereError where there are no counters, NotPermittedError with what would help.
        """
        if self._is_for_live and not node.is_live:
            raise NotHereError("perf: only the machine itself has counters")
        self.errors = []
        online = node.read_single(f"{_CPUS}/online")
        if online != self._online:
            self.close()
            try:
                self._plan = self._open(node, parse_cpu_list(online))
            except OSError as error:
                self._give_up()
                raise explained(error, read_paranoid(node)) from None
            except CcagentError:
                self._give_up()
                raise
            self._online = online
        gauges: list[Gauge] = []
        if self._plan is not None:
            self._read_cores(self._plan, gauges)
        for place, counters, weights in self._memory:
            traffic = total(counters.rates(self.errors, []), weights)
            if traffic is not None:
                gauges.append(Gauge("mem_bw", traffic, place))
        return gauges

    def close(self) -> None:
        """Let all counters go."""
        for core in self._cores:
            core.counters.close()
        self._cores, self._online = [], b""
        self._close_memory()

    def _give_up(self) -> None:
        """Let all go: that nothing can be counted says enough."""
        self.close()
        self.errors = []

    def _read_cores(self, plan: Plan, gauges: list[Gauge]) -> None:
        shares: list[float] = []
        for place, counters in self._cores:
            rates = counters.rates(self.errors, shares)
            gauges += [Gauge(metric, value, place) for metric, value in plan.derive(rates)]
        if shares:
            gauges.append(Gauge("perf_counted", 100.0 * sum(shares) / len(shares)))

    def _open(self, node: Node, cpus: list[int]) -> Plan:
        """Open all counters. Raises OSError, NotHereError."""
        # Where counting is not allowed or not possible, this is all that a reading costs.
        self._call.close(self._call.open(CYCLES, cpus[0] if cpus else 0))
        raise_limit()
        lacks = Lacks()
        self.absent, self.errors = lacks.absent, lacks.errors
        cpu = identify(next(iter(node.pieces("proc/cpuinfo")), b""))
        table = choose(cpu)
        if table is None:
            unknown = f"perf: no table for {cpu or 'a processor that /proc/cpuinfo does not name'}"
            lacks.note(NotHereError(unknown), *FLOPS, "mem_bw")
        plan = Plan(node, table, lacks)
        for number in cpus:
            counters = Counters(self._call, plan.together)
            self._cores.append(_Core(Place("hwthread", str(number)), counters))
            refused = counters.add(number, plan.events)
            if number == cpus[0]:
                plan.refuse(refused, lacks)
                if plan.needs_rate:
                    rates = [self._call.frequency(group.leader) for group in counters.groups[:1]]
                    plan.set_rate(sum(rates), lacks)
        if table is not None:
            self._open_memory(node, table, lacks)
        return plan

    def _open_memory(self, node: Node, table: Table, lacks: Lacks) -> None:
        """Count memory traffic in the first way that the machine has."""
        if not table.memory:
            lacks.note(NotHereError(f"perf: {table.name}: no event counts it"), "mem_bw")
        for memory in table.memory:
            try:
                self._open_channels(node, memory)
            except OSError as error:
                lacks.note(explained(error, ""), "mem_bw")
            except CcagentError as error:
                lacks.note(error, "mem_bw")
            else:
                lacks.absent.pop("mem_bw", None)
                return
            self._close_memory()

    def _open_channels(self, node: Node, memory: Memory) -> None:
        """Count on all PMUs together. Raises OSError and CcagentError if one of them can't."""
        texts = [(text, each.bytes) for each in memory.events for text in each.events()]
        sockets: dict[int, _Memory] = {}
        for pmu in find_pmus(node, memory.pmus):
            events = [pmu.event(text) for text, _ in texts]
            for cpu in pmu.cpus():
                path = f"{_CPUS}/cpu{cpu}/topology/physical_package_id"
                socket = max(0, read_parsed(node, path, parse_socket))
                if socket not in sockets:
                    place = Place("socket", str(socket))
                    sockets[socket] = _Memory(place, Counters(self._call), [])
                    self._memory.append(sockets[socket])
                _, counters, weights = sockets[socket]
                refused = counters.add(cpu, events, memory.group)
                if refused:
                    raise next(iter(refused.values()))
                weights += [(len(weights) + i, size) for i, (_, size) in enumerate(texts)]

    def _close_memory(self) -> None:
        for memory in self._memory:
            memory.counters.close()
        self._memory = []
