"""Readers of load and CPU time, of the scheduler's times, and of frequencies of hwthreads."""

from __future__ import annotations

from itertools import repeat
from operator import sub
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.counters import hold_cpu_times
from ccagent.machine.cpus import CPUS, read_online
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_kernel_stat, parse_loadavg, parse_schedstat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.system import KernelStat


_STATES = {
    "user": "in user mode, including guests",
    "nice": "in user mode at low priority (nice), including guests",
    "system": "in the kernel",
    "idle": "idle",
    "iowait": "idle while a task waits for block I/O",
    "irq": "in hardware interrupts",
    "softirq": "in soft interrupts",
    "steal": "stolen by the hypervisor",
}
"""Descriptions of CPU_STATES, in their order."""

_SHARES = tuple(f"cpu_{state}" for state in _STATES)
_LOADS = ("cpu_load", "cpu_load5", "cpu_load15", "proc_run", "proc_total")
"""Metrics of the fields of Load."""
_EVENTS = {"ctxt": "context_switches", "intr": "interrupts", "processes": "forks"}


def shares(delta: list[int]) -> list[float]:
    """Return each delta as percent of their sum. Deltas are non-negative, the sum is positive."""
    total = sum(delta)
    return [100 * each / total for each in delta]


class CpuSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.cpu]."""

    types: Annotated[
        tuple[Literal["node", "hwthread"], ...],
        Meta(description="scopes of the shares of time: node, hwthread"),
    ] = ("node", "hwthread")
    of_node: Annotated[
        Literal["mean", "sum"],
        Meta(
            description="shares of the node: mean over hwthreads, or sum as in cc-metric-collector"
        ),
    ] = "mean"


class CpuReader(Reader[CpuSettings]):
    """Load; shares of time of each hwthread and their mean; context switches, interrupts, forks.

    Shares are computed over two readings. The first reading has none. A hwthread that was offline
    at either reading has none.
    """

    name = "cpu"
    Settings = CpuSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_load": Metric("", "node",
            "tasks running, runnable or in uninterruptible sleep; 1-minute mean",
            "/proc/loadavg, first field", aggregation="mean"),
        "cpu_load5": Metric("", "node", "like cpu_load, 5-minute mean",
            "/proc/loadavg, second field", aggregation="mean", is_default=False),
        "cpu_load15": Metric("", "node", "like cpu_load, 15-minute mean",
            "/proc/loadavg, third field", aggregation="mean", is_default=False),
        "proc_run": Metric("", "node", "running and runnable threads, including ccagent",
            "/proc/loadavg, fourth field before the slash", is_default=False),
        "proc_total": Metric("", "node", "existing threads",
            "/proc/loadavg, fourth field behind the slash", is_default=False),
        **{
            f"cpu_{state}": Metric(
                unit="%",
                type="hwthread",
                description=f"share of time {description}",
                source=f"/proc/stat, cpuN: {state}",
                aggregation="mean",
            )
            for state, description in _STATES.items()
        },
        "context_switches": Metric("1/s", "node", "context switches of all cpus",
            "/proc/stat, ctxt", is_default=False),
        "interrupts": Metric("1/s", "node", "interrupts of all cpus",
            "/proc/stat, intr: first number", is_default=False),
        "forks": Metric("1/s", "node", "processes and threads created", "/proc/stat, processes",
            is_default=False),
    }  # fmt: skip

    def __init__(self, settings: CpuSettings | None = None) -> None:
        super().__init__(settings)
        self._of_node = "node" in self.settings.types
        self._of_hwthreads = "hwthread" in self.settings.types
        self._before: dict[int, list[int]] = {}
        self._scopes: dict[int, Scope] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of /proc."""
        from ccagent.machine.checks import require_proc

        yield require_proc(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/loadavg and /proc/stat. Raise NotHereError if both are missing."""
        found, stat = self._read_files(node)
        if stat is not None:
            if not stat.times:
                self.errors.append("/proc/stat: no line of a cpu")
            found += self._times(stat.times, node.clock_ticks)
        self.require(found)
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read loads, events, and the time of each hwthread in each state since boot."""
        found, stat = self._read_files(node)
        if stat is not None:
            hertz = node.clock_ticks
            for cpu, ticks in stat.times.items():
                # Hundredths of a second: 100 in a second are 100 %.
                parts = [tick * 100 // hertz for tick in ticks]
                found += map(Count, _SHARES, parts, repeat(self._scope_of(cpu)))
        self.require(found)
        return found

    def _read_files(self, node: Node) -> tuple[list[Gauge | Count], KernelStat | None]:
        """Return loads and events, and the content of /proc/stat if it can be read."""
        self.forget_errors()
        loads = self.try_parsed(node, "proc/loadavg", parse_loadavg)
        found: list[Gauge | Count] = [] if loads is None else [*map(Gauge, _LOADS, loads)]
        stat = self.try_parsed(node, "proc/stat", parse_kernel_stat)
        if stat is not None:
            found += (Count(_EVENTS[name], value) for name, value in stat.events.items())
        return found, stat

    def _times(self, times: dict[int, list[int]], clock_ticks: int) -> list[Gauge]:
        before, self._before = self._before, times
        found: list[Gauge] = []
        rows: list[list[float]] = []
        for cpu, ticks in times.items():
            old = before.get(cpu)
            if old is None:
                continue
            delta = list(map(sub, ticks, old))
            if min(delta) < 0:
                held = hold_cpu_times(old, ticks, clock_ticks)
                if held is None:
                    continue
                times[cpu] = held
                delta = list(map(sub, held, old))
            if any(delta):
                row = shares(delta)
                rows.append(row)
                if self._of_hwthreads:
                    found += map(Gauge, _SHARES, row, repeat(self._scope_of(cpu)))
        if self._of_node and rows:
            divisor = 1 if self.settings.of_node == "sum" else len(rows)
            means = [sum(column) / divisor for column in zip(*rows, strict=True)]
            found += map(Gauge, _SHARES, means, repeat(NODE))
        return found

    def _scope_of(self, cpu: int) -> Scope:
        scope = self._scopes.get(cpu)
        if scope is None:
            scope = self._scopes[cpu] = Scope("hwthread", str(cpu))
        return scope


_STATISTICS = "proc/schedstat"
_NANOSECONDS = 1e-9


class SchedstatReader(Reader[ReaderSettings]):
    """Run and wait times of each hwthread; read only if a metric is wanted.

    The kernel adds the time of a task when the task leaves the hwthread. A long run counts late,
    and a rate may exceed 100 %.
    """

    name = "schedstat"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_load_core": Metric("", "hwthread",
            "running and waiting tasks of the hwthread, mean since the previous sample",
            "/proc/schedstat, cpuN: fields 7 + 8", scale=_NANOSECONDS, is_default=False),
        "sched_run": Metric("%", "hwthread", "time in which a task ran",
            "/proc/schedstat, cpuN: field 7", aggregation="mean", scale=_NANOSECONDS * 100,
            is_default=False),
        "sched_wait": Metric("%", "hwthread",
            "waiting time for the hwthread, summed over tasks; may exceed 100",
            "/proc/schedstat, cpuN: field 8", aggregation="mean", scale=_NANOSECONDS * 100,
            is_default=False),
        "sched_timeslices": Metric("1/s", "hwthread", "timeslices started on the hwthread",
            "/proc/schedstat, cpuN: field 9", is_default=False),
    }  # fmt: skip

    def read(self, node: Node) -> Iterable[Count]:
        """Read /proc/schedstat. Raise NotHereError without CONFIG_SCHEDSTATS."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        found: list[Count] = []
        for number, times in read_parsed(node, _STATISTICS, parse_schedstat).items():
            scope = Scope("hwthread", str(number))
            found.append(Count("cpu_load_core", times.ran + times.waited, scope))
            found.append(Count("sched_run", times.ran, scope))
            found.append(Count("sched_wait", times.waited, scope))
            found.append(Count("sched_timeslices", times.timeslices, scope))
        return found


_HIGHEST = 100_000_000
"""Upper limit in kHz, above any real frequency."""


def parse_frequency(content: bytes) -> int:
    """Parse scaling_cur_freq in kHz. Return Hz. Raise UnparsableError.

    A driver without a known frequency writes 0 or `<unknown>`: both are unparsable.
    Source: scaling_cur_freq in Documentation/admin-guide/pm/cpufreq.rst of Linux.
    """
    text = content.strip()
    if not text.isdigit() or len(text) > 10 or not 0 < int(text) <= _HIGHEST:
        raise UnparsableError(f"not a frequency: {content[:80]!r}")
    return int(text) * 1000


class CpufreqReader(Reader[ReaderSettings]):
    """Frequencies of online hwthreads; read only if wanted.

    Some kernels wait 10 ms for each idle hwthread. Set `every` to read less often.
    """

    name = "cpufreq"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = {
        "cpufreq": Metric(
            unit="Hz",
            type="hwthread",
            description="frequency last seen or requested by the kernel; `clock` is measured",
            source="/sys/devices/system/cpu/cpuN/cpufreq/scaling_cur_freq",
            aggregation="mean",
            is_default=False,
        )
    }

    def read(self, node: Node) -> Iterable[Gauge]:
        """Read each scaling_cur_freq. Raise NotHereError if no hwthread has one."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        found: list[Gauge] = []
        for number in read_online(node):
            path = f"{CPUS}/cpu{number}/cpufreq/scaling_cur_freq"
            frequency = self.try_parsed(node, path, parse_frequency)
            if frequency is not None:
                found.append(Gauge("cpufreq", frequency, Scope("hwthread", str(number))))
        if not found and not self.errors:
            raise NotHereError(f"/{CPUS}: no hwthread with cpufreq/scaling_cur_freq")
        return found
