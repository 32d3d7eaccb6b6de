"""CPU collectors: cpu, stat, loadavg, schedstat, pressure, cpufreq."""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector, list_names, read_number
from ccagent.exporter.family import counter, gauge
from ccagent.machine.cgroup.pressure import parse_pressure
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.loadavg import parse_loadavg
from ccagent.machine.procfs.schedstat import parse_schedstat
from ccagent.machine.procfs.stat import CPU_STATES, parse_kernel_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_CPU = counter("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", "cpu", "mode")
_GUEST = counter(
    "node_cpu_guest_seconds_total",
    "Seconds the CPUs spent in guests (VMs) for each mode.",
    "cpu",
    "mode",
)
_CORE_THROTTLES = counter(
    "node_cpu_core_throttles_total", "Times a core was throttled.", "package", "core"
)
_PACKAGE_THROTTLES = counter(
    "node_cpu_package_throttles_total", "Times a package was throttled.", "package"
)
_RETREAT = 3.0
"""Seconds by which idle time may decrease without counting as a reset, as in node_exporter."""
_CPUS = "sys/devices/system/cpu"
_IDLE = CPU_STATES.index("idle")


class CpuCollector(Collector):
    """Seconds of each CPU by mode. They never decrease, except after a CPU was offline."""

    name = "cpu"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._before: dict[int, tuple[int, ...]] = {}
        self._labels: dict[int, tuple[tuple[Labels, ...], tuple[Labels, ...]]] = {}
        self._throttled: list[tuple[str, str, str]] | None = None

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/stat and the counters of throttling."""
        hertz = node.clock_ticks
        stat = read_parsed(node, "proc/stat", parse_kernel_stat)
        times: dict[int, tuple[int, ...]] = {
            cpu: (*ticks, *stat.guests[cpu]) for cpu, ticks in stat.times.items()
        }
        before = self._before
        for cpu, ticks in times.items():
            old = before.get(cpu)
            # idle and iowait sometimes decrease slightly (kernel/time/tick-sched.c).
            if (
                old is not None
                and any(map(lt, ticks, old))
                and old[_IDLE] - ticks[_IDLE] < _RETREAT * hertz
            ):
                times[cpu] = tuple(map(max, ticks, old))
        self._before = times
        rows: list[tuple[Labels, float]] = []
        guests: list[tuple[Labels, float]] = []
        for cpu, ticks in times.items():
            labels = self._labels.get(cpu)
            if labels is None:
                modes = tuple((str(cpu), mode) for mode in CPU_STATES)
                labels = self._labels[cpu] = (modes, ((str(cpu), "user"), (str(cpu), "nice")))
            seconds = [tick / hertz for tick in ticks]
            rows += zip(labels[0], seconds, strict=False)
            guests += zip(labels[1], seconds[8:], strict=True)
        yield _CPU, rows
        yield _GUEST, guests
        yield from self._throttles(node)

    def _throttles(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        if self._throttled is None:
            self._throttled = [
                (name, str(package), str(core))
                for name in list_names(node, _CPUS)
                if name[:3] == "cpu" and name[3:].isdigit()
                and node.exists(f"{_CPUS}/{name}/thermal_throttle")
                and (package := read_number(node, f"{_CPUS}/{name}/topology/physical_package_id"))
                is not None
                and (core := read_number(node, f"{_CPUS}/{name}/topology/core_id")) is not None
            ]  # fmt: skip
        cores: dict[Labels, float] = {}
        packages: dict[Labels, float] = {}
        for name, chip, inner in self._throttled:
            where = f"{_CPUS}/{name}/thermal_throttle"
            if (chip, inner) not in cores:
                count = read_number(node, f"{where}/core_throttle_count")
                if count is not None:
                    cores[chip, inner] = count
            if (chip,) not in packages:
                count = read_number(node, f"{where}/package_throttle_count")
                if count is not None:
                    packages[chip,] = count
        yield _CORE_THROTTLES, cores.items()
        yield _PACKAGE_THROTTLES, packages.items()


_EVENTS = {
    "intr": counter("node_intr_total", "Total number of interrupts serviced."),
    "ctxt": counter("node_context_switches_total", "Total number of context switches."),
    "processes": counter("node_forks_total", "Total number of forks."),
    "btime": gauge("node_boot_time_seconds", "Node boot time, in unixtime."),
    "procs_running": gauge("node_procs_running", "Number of processes in runnable state."),
    "procs_blocked": gauge(
        "node_procs_blocked", "Number of processes blocked waiting for I/O to complete."
    ),
}


class StatCollector(Collector):
    """Interrupts, context switches, forks, boot time, running and blocked processes."""

    name = "stat"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/stat."""
        stat = read_parsed(node, "proc/stat", parse_kernel_stat)
        for name, value in {**stat.events, "btime": stat.boot, **stat.tasks}.items():
            if name != "btime" or value:
                yield _EVENTS[name], [((), value)]


_LOADS = tuple(gauge(f"node_load{n}", f"{n}m load average.") for n in (1, 5, 15))


class LoadCollector(Collector):
    """The load averages."""

    name = "loadavg"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/loadavg."""
        load = read_parsed(node, "proc/loadavg", parse_loadavg)
        for family, value in zip(_LOADS, load[:3], strict=True):
            yield family, [((), value)]


_SCHEDSTAT = (
    counter(
        "node_schedstat_running_seconds_total",
        "Number of seconds CPU spent running a process.", "cpu",
    ),
    counter(
        "node_schedstat_waiting_seconds_total",
        "Number of seconds spent by processing waiting for this CPU.", "cpu",
    ),
    counter(
        "node_schedstat_timeslices_total", "Number of timeslices executed by CPU.", "cpu"
    ),
)  # fmt: skip


class SchedstatCollector(Collector):
    """Running and waiting times of tasks by CPU."""

    name = "schedstat"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/schedstat."""
        times = read_parsed(node, "proc/schedstat", parse_schedstat)
        running, waiting, slices = _SCHEDSTAT
        yield running, [((str(cpu),), each.ran / 1e9) for cpu, each in times.items()]
        yield waiting, [((str(cpu),), each.waited / 1e9) for cpu, each in times.items()]
        yield slices, [((str(cpu),), each.timeslices) for cpu, each in times.items()]


_PRESSURE = {
    ("cpu", "some"): ("cpu_waiting", ("Total time in seconds that processes have waited for CPU"
                      " time")),
    ("io", "some"): ("io_waiting", ("Total time in seconds that processes have waited due to IO"
                     " congestion")),
    ("io", "full"): ("io_stalled", ("Total time in seconds no process could make progress due to IO"
                     " congestion")),
    ("memory", "some"): ("memory_waiting", ("Total time in seconds that processes have waited for"
                         " memory")),
    ("memory", "full"): ("memory_stalled", ("Total time in seconds no process could make progress"
                         " due to memory congestion")),
    ("irq", "full"): ("irq_stalled", ("Total time in seconds no process could make progress due to"
                      " IRQ congestion")),
}  # fmt: skip
_PRESSURES = {
    key: counter(f"node_pressure_{name}_seconds_total", text)
    for key, (name, text) in _PRESSURE.items()
}


class PressureCollector(Collector):
    """Pressure stall times of CPU, memory, I/O and interrupts."""

    name = "pressure"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/pressure. Raise NotHereError if the kernel lacks it."""
        missing: NotHereError | None = None
        found = False
        for resource in ("cpu", "io", "memory", "irq"):
            try:
                pressures = read_parsed(node, f"proc/pressure/{resource}", parse_pressure)
            except NotHereError as error:
                missing = error
                continue
            except CcagentError as error:
                self.warn(error)
                continue
            found = True
            for extent, pressure in pressures.items():
                family = _PRESSURES.get((resource, extent))
                if family is not None:
                    yield family, [((), pressure.total / 1e6)]
        if missing is not None and not found:
            raise missing


_FREQUENCY = {
    name: gauge(f"node_cpu_{public}_hertz", text, "cpu")
    for name, public, text in (
        ("cpuinfo_cur_freq", "frequency", "Current CPU thread frequency in hertz."),
        ("cpuinfo_min_freq", "frequency_min", "Minimum CPU thread frequency in hertz."),
        ("cpuinfo_max_freq", "frequency_max", "Maximum CPU thread frequency in hertz."),
        ("scaling_cur_freq", "scaling_frequency", "Current scaled CPU thread frequency in hertz."),
        (
            "scaling_min_freq",
            "scaling_frequency_min",
            "Minimum scaled CPU thread frequency in hertz.",
        ),
        (
            "scaling_max_freq",
            "scaling_frequency_max",
            "Maximum scaled CPU thread frequency in hertz.",
        ),
    )
}


class FrequencyCollector(Collector):
    """CPU frequencies and their limits."""

    name = "cpufreq"

    def collect(self, node: Node) -> Iterable[tuple[Family, Rows]]:
        """Read /sys/devices/system/cpu/cpu*/cpufreq, where the unit is kHz."""
        names = [each for each in node.list(_CPUS) if each[:3] == "cpu" and each[3:].isdigit()]
        cpus = [each for each in sorted(names) if node.exists(f"{_CPUS}/{each}/cpufreq")]
        for file, family in _FREQUENCY.items():
            rows: list[tuple[Labels, float]] = []
            for cpu in cpus:
                value = read_number(node, f"{_CPUS}/{cpu}/cpufreq/{file}")
                if value is not None:
                    rows.append(((cpu[3:],), value * 1000))
            yield family, rows
