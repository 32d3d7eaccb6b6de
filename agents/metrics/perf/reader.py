"""Reader and check of hardware counters: clock, instructions, floating-point operations, memory.

Linux perf events count all processes together, see perf_event_open(2). The counters of a group
count at the same times, and one call reads them. If groups do not fit together, the kernel
multiplexes them. A rate is the delta over the time in which the group counted.
"""

from __future__ import annotations

import errno
import os
import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.perf.call import (
    CYCLES,
    DEVICES,
    NO_GROUP,
    PARANOID,
    Counts,
    PerfCall,
    PerfEvent,
    explain_error,
    find_pmus,
    parse_counts,
)
from ccagent.agents.metrics.perf.plan import FLOPS, EventPlan, UnavailableMetrics, choose, total
from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.cpus import CPUS, read_identity, read_socket
from ccagent.machine.descriptors import raise_limit
from ccagent.machine.parsed import read_lack
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.metrics.perf.plan import EventTable, MemoryTraffic
    from ccagent.machine.node import Node

_NO_EVENT_WILL_DO = frozenset(
    {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS}
)
_LONG_ENOUGH = 100_000_000
_LARGEST = 64
_SUMMED = ("Flops/s", "B/s")
"""Units of the rates that a query of Prometheus computes from a counter."""

_CORES = re.compile(r"cpu|cpu_core|cpu_atom|armv\d+.*|cpum_cf")


class EventGroup:
    """Group of counters on one cpu that count at the same times.

    numbers: numbers of the group's events. is_starved: the group was enabled since the last reading
    but never scheduled.
    """

    def __init__(self, call: PerfCall, cpu: int) -> None:
        self.cpu = cpu
        self.numbers: list[int] = []
        self.is_starved = False
        self._call = call
        self._descriptors: list[int] = []
        self._before: Counts | None = None

    @property
    def leader(self) -> int:
        """Descriptor of the group leader."""
        return self._descriptors[0]

    def add(self, number: int, event: PerfEvent) -> None:
        """Open a counter of an event. Raise OSError if this group cannot count it."""
        leader = self.leader if self._descriptors else NO_GROUP
        self._descriptors.append(self._call.open(event, self.cpu, leader))
        self.numbers.append(number)

    def enable(self) -> None:
        """Enable the group. Raise OSError if the kernel refuses."""
        self._call.enable(self.leader)

    def read(self, rates: list[float | None]) -> float | None:
        """Write the rates per second since the last reading into `rates`, by number.

        Return the share of time that was counted. The first reading returns None and writes no
        rates. Raise OSError or UnparsableError.
        """
        before, self._before = self._before, None
        now = self._before = parse_counts(self._call.read(self.leader))
        if before is None:
            return None
        enabled, running = now.enabled - before.enabled, now.running - before.running
        self.is_starved = running <= 0 and enabled >= _LONG_ENOUGH
        if enabled <= 0 or running <= 0:
            return 0.0 if enabled > 0 else None
        for number, new, old in zip(self.numbers, now.values, before.values, strict=False):
            if new >= old:
                rates[number] = (new - old) * 1e9 / running
        return min(1.0, running / enabled)

    def close(self) -> None:
        """Close the counters, the leader last."""
        while self._descriptors:
            self._call.close(self._descriptors.pop())


class PerfCounters:
    """Counters of a core or a memory controller, on one cpu or several.

    together: number of first events to keep in one group if possible.
    """

    def __init__(self, call: PerfCall, together: int = 0) -> None:
        self.groups: list[EventGroup] = []
        self._call = call
        self._together = together
        self._events: list[PerfEvent] = []

    def add(
        self, cpu: int, events: Sequence[PerfEvent], largest: int = _LARGEST
    ) -> dict[int, OSError]:
        """Count events on a cpu, in groups as large as the kernel accepts, at most `largest`.

        Events are numbered in the order of adding. Return the refused events. Raise OSError for an
        error of all events, such as permissions, and NotHereError on an unknown architecture.
        """
        first = len(self._events)
        self._events += events
        return self._open(cpu, range(first, len(self._events)), largest)

    def rates(self, errors: list[str], shares: list[float]) -> list[float | None]:
        """Return the rates per second since the last reading, None for an unknown rate.

        Append to `shares` the share of time in which each group counted.
        """
        rates: list[float | None] = [None] * len(self._events)
        for group in tuple(self.groups):
            try:
                share = group.read(rates)
                if share is not None:
                    shares.append(share)
                if group.is_starved and len(group.numbers) > 1:
                    self._split(group)
            except OSError as error:
                errors.append(f"perf: cpu {group.cpu}: {os.strerror(error.errno or 0)}")
            except UnparsableError as error:
                errors.append(f"perf: cpu {group.cpu}: {error}")
        return rates

    def close(self) -> None:
        """Close all counters."""
        while self.groups:
            self.groups.pop().close()

    def _open(self, cpu: int, numbers: Sequence[int], largest: int) -> dict[int, OSError]:
        opened: list[EventGroup] = []
        refused: dict[int, OSError] = {}
        try:
            for number in numbers:
                if (
                    opened
                    and len(opened[-1].numbers) < largest
                    and not self._add(opened[-1], number)
                ):
                    continue
                group = EventGroup(self._call, cpu)
                error = self._add(group, number)
                if error is None:
                    opened.append(group)
                else:
                    refused[number] = error
            for group in opened:
                group.enable()
        except OSError:
            for group in opened:
                group.close()
            raise
        self.groups += opened
        return refused

    def _add(self, group: EventGroup, number: int) -> OSError | None:
        """Add an event to a group. Return the error if the kernel refuses this event."""
        try:
            group.add(number, self._events[number])
        except OSError as error:
            if error.errno in _NO_EVENT_WILL_DO:
                raise
            return error
        return None

    def _split(self, group: EventGroup) -> None:
        """Split a group that is never scheduled. Raise OSError if the kernel refuses.

        The kernel accepts a group that fits an idle PMU, but the NMI watchdog may use a counter.
        """
        numbers = group.numbers
        cut = self._together if numbers[0] == 0 else 0
        if not 0 < cut < len(numbers):
            cut = len(numbers) // 2
        group.close()
        self.groups.remove(group)
        self._open(group.cpu, numbers[:cut], _LARGEST)
        self._open(group.cpu, numbers[cut:], _LARGEST)


class _Core(NamedTuple):
    """PerfCounters of a hardware thread."""

    scope: Scope
    counters: PerfCounters


class _Memory(NamedTuple):
    """PerfCounters of the memory of a socket. weights: bytes per count, by event number."""

    scope: Scope
    counters: PerfCounters
    weights: list[tuple[int, float]]


class PerfReader(Reader[ReaderSettings]):
    """Reads the counters of all cores and memory controllers; counters stay open."""

    name: ClassVar[str] = "perf"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = {
        "clock": Metric("Hz", "hwthread", "clock rate while awake",
            "perf: msr/aperf, msr/mperf, msr/tsc; on aarch64 cycles, CNT_CYCLES",
            aggregation="mean"),
        "ipc": Metric("", "hwthread", "instructions retired per cycle",
            "perf: instructions, cycles", aggregation="mean"),
        "flops_sp": Metric("Flops/s", "hwthread", "single-precision floating-point operations",
            "perf: events of the processor"),
        "flops_dp": Metric("Flops/s", "hwthread", "double-precision floating-point operations",
            "perf: events of the processor"),
        "flops_any": Metric("Flops/s", "hwthread",
            "Floating-point operations: twice flops_dp and flops_sp, or all of them "
            "alike where the processor cannot distinguish them", "perf: events of the processor"),
        "mem_bw": Metric("B/s", "socket", "Traffic of the main memory, read and written",
            "perf: events of the memory controllers"),
        "perf_counted": Metric("%", "node",
            "Share of the time that the counters of cores were really counting",
            "perf: time running, time enabled", aggregation="mean", is_default=False),
    }  # fmt: skip

    def __init__(
        self, settings: ReaderSettings | None = None, call: PerfCall | None = None
    ) -> None:
        super().__init__(settings)
        self._is_for_live = call is None
        self._call = call or PerfCall()
        self._online = b""
        self._plan: EventPlan | None = None
        self._cores: list[_Core] = []
        self._memory: list[_Memory] = []
        self._moment = 0.0
        self._totals: dict[tuple[str, Scope], float] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of hardware counters."""
        yield Check("power", "hardware counters", partial(find_counters, node))

    def read(self, node: Node) -> list[Gauge]:
        """Return rates since the last reading; none at the first, or after a change of cpus.

        Raise NotHereError without counters, or NotPermittedError with the fix.
        """
        if self._is_for_live and not node.is_live:
            raise NotHereError("perf: only the machine itself has counters")
        self.forget_errors()
        online = node.read_single(f"{CPUS}/online")
        if online != self._online:
            self.close()
            try:
                self._plan = self._open(node, parse_cpu_list(online))
            except OSError as error:
                self._give_up()
                raise explain_error(
                    error, node.read_text(PARANOID), read_lack(node, "CAP_PERFMON")
                ) from error
            except CcagentError:
                self._give_up()
                raise
            self._online = online
        gauges: list[Gauge] = []
        if self._plan is not None:
            self._read_cores(self._plan, gauges)
        for scope, counters, weights in self._memory:
            traffic = total(counters.rates(self.errors, []), weights)
            if traffic is not None:
                gauges.append(Gauge("mem_bw", traffic, scope))
        return gauges

    def read_raw(self, node: Node) -> Iterator[Gauge | Count]:
        """Yield operations and traffic as counters since the first reading. Raise as `read` does.

        Other values are means since the previous reading.
        """
        now = node.clock.monotonic()
        elapsed = now - self._moment
        self._moment = now
        for each in self.read(node):
            if self.metrics[each.metric].unit in _SUMMED:
                key = (each.metric, each.scope)
                self._totals[key] = self._totals.get(key, 0.0) + each.value * elapsed
                yield Count(each.metric, round(self._totals[key]), each.scope)
            else:
                yield each

    def close(self) -> None:
        """Close all counters."""
        for core in self._cores:
            core.counters.close()
        self._cores, self._online = [], b""
        self._close_memory()

    def _give_up(self) -> None:
        """Close all counters. Drop their errors: the caller raises the cause."""
        self.close()
        self.forget_errors()

    def _read_cores(self, plan: EventPlan, gauges: list[Gauge]) -> None:
        shares: list[float] = []
        for scope, counters in self._cores:
            rates = counters.rates(self.errors, shares)
            gauges += [Gauge(metric, value, scope) for metric, value in plan.derive(rates)]
        if shares:
            gauges.append(Gauge("perf_counted", 100.0 * sum(shares) / len(shares)))

    def _open(self, node: Node, cpus: list[int]) -> EventPlan:
        """Open all counters. Raise OSError if the kernel refuses, NotHereError without hardware."""
        # Without permission or hardware, this is the only call.
        self._call.close(self._call.open(CYCLES, cpus[0] if cpus else 0))
        raise_limit()
        unavailable = UnavailableMetrics()
        self.absent, self.errors = unavailable.absent, unavailable.errors
        cpu = read_identity(node)
        table = choose(cpu)
        if table is None:
            unknown = f"perf: no table for {cpu or 'a processor that /proc/cpuinfo does not name'}"
            unavailable.note(NotHereError(unknown), *FLOPS, "mem_bw")
        plan = EventPlan(node, table, unavailable)
        # Metrics besides memory traffic are counted for each hwthread.
        has_cores = self.wanted is None or bool(self.wanted & self.metrics.keys() - {"mem_bw"})
        for number in cpus if has_cores else ():
            counters = PerfCounters(self._call, plan.together)
            self._cores.append(_Core(Scope("hwthread", str(number)), counters))
            refused = counters.add(number, plan.events)
            if number == cpus[0]:
                plan.refuse(refused, unavailable)
                if plan.needs_rate:
                    rates = [self._call.frequency(group.leader) for group in counters.groups[:1]]
                    plan.set_rate(sum(rates), unavailable)
        if table is not None:
            self._open_memory(node, table, unavailable)
        return plan

    def _open_memory(self, node: Node, table: EventTable, unavailable: UnavailableMetrics) -> None:
        """Count memory traffic with the first available set of events."""
        if not table.memory:
            unavailable.note(NotHereError(f"perf: {table.name}: no event counts it"), "mem_bw")
        for memory in table.memory:
            try:
                self._open_channels(node, memory)
            except OSError as error:
                unavailable.note(explain_error(error, ""), "mem_bw")
            except CcagentError as error:
                unavailable.note(error, "mem_bw")
            else:
                unavailable.absent.pop("mem_bw", None)
                return
            self._close_memory()

    def _open_channels(self, node: Node, memory: MemoryTraffic) -> None:
        """Count on all PMUs together. Raise OSError or CcagentError if a PMU fails."""
        texts = [(text, each.bytes) for each in memory.events for text in each.events()]
        sockets: dict[int, _Memory] = {}
        for pmu in find_pmus(node, memory.pmus):
            events = [pmu.event(text) for text, _ in texts]
            for cpu in pmu.cpus():
                socket = read_socket(node, cpu)
                if socket not in sockets:
                    scope = Scope("socket", str(socket))
                    sockets[socket] = _Memory(scope, PerfCounters(self._call), [])
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


def find_counters(node: Node) -> CheckResult:
    """Open and close a counter of cycles on the first cpu."""
    paranoid = node.read_text(PARANOID)
    pmus = list(filter(_CORES.fullmatch, node.list_names(DEVICES)))
    return assess_counters(pmus, paranoid, _try_cycles(paranoid) if node.is_live else None)


def assess_counters(
    pmus: Sequence[str], paranoid: str, refusal: CcagentError | None
) -> CheckResult:
    """Return the result for the core PMUs and the error of opening a counter."""
    level = f"perf_event_paranoid is {paranoid or 'unknown'}"
    if not pmus or isinstance(refusal, NotHereError):
        fix = "for a virtual machine, enable a vPMU on the host"
        return CheckResult("missing", f"no PMU of cores; {level}", fix)
    if refusal is not None:
        call, reason, fix = [*str(refusal).split(": ", 2), "", ""][:3]
        return CheckResult("problem", f"PMU {', '.join(pmus)}, but {call}: {reason}; {level}", fix)
    return CheckResult("good", f"PMU {', '.join(pmus)} counts; {level}")


def _try_cycles(paranoid: str) -> CcagentError | None:
    call = PerfCall()
    try:
        call.close(call.open(CYCLES, 0))
    except OSError as error:
        return explain_error(error, paranoid)
    except CcagentError as error:
        return error
    return None
