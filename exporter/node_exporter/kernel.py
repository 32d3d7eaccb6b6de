"""Collectors of CPUs and memory: cpu, stat, meminfo, pressure and others."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from operator import lt
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import (
    Collector,
    list_names,
    read_number,
    read_numbers,
    read_text,
)
from ccagent.exporter.exposition import Columns, Family, counter, gauge, name_family
from ccagent.log import logger
from ccagent.machine.counters import hold_cpu_times
from ccagent.machine.cpus import CPUS, read_topology_id
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import (
    CPU_STATES,
    parse_cpu_list,
    parse_interrupts,
    parse_kernel_stat,
    parse_loadavg,
    parse_meminfo,
    parse_pressure,
    parse_schedstat,
    parse_vmstat,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows, Labels
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
    "node_cpu_core_throttles_total",
    "Number of times this CPU core has been throttled.",
    "package",
    "core",
)
_PACKAGE_THROTTLES = counter(
    "node_cpu_package_throttles_total",
    "Number of times this CPU package has been throttled.",
    "package",
)
_ISOLATED = gauge(
    "node_cpu_isolated",
    "Whether each core is isolated, information from /sys/devices/system/cpu/isolated.", "cpu",
)  # fmt: skip
_ONLINE = gauge("node_cpu_online", "CPUs that are online and being scheduled.", "cpu")
_IDLE = slice(CPU_STATES.index("idle"), CPU_STATES.index("idle") + 1)
"""Only a fall of idle time is judged, as in node_exporter."""


class CpuCollector(Collector):
    """Seconds of each CPU by mode. They never decrease, except after a CPU was offline."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._before: dict[int, tuple[int, ...]] = {}
        self._cpus: list[int] = []
        self._modes: list[Labels] = []
        self._guests: list[Labels] = []
        self._throttled: list[tuple[str, str, str]] | None = None

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /proc/stat and the counters of throttling."""
        hertz = node.clock_ticks
        stat = read_parsed(node, "proc/stat", parse_kernel_stat)
        times: dict[int, tuple[int, ...]] = {
            cpu: (*ticks, *stat.guests[cpu]) for cpu, ticks in stat.times.items()
        }
        before = self._before
        for cpu, ticks in times.items():
            old = before.get(cpu)
            if old is not None and any(map(lt, ticks, old)):
                times[cpu] = tuple(hold_cpu_times(old, ticks, hertz, _IDLE) or ticks)
        self._before = times
        if self._cpus != [*times]:
            self._cpus = [*times]
            self._modes = [(str(cpu), mode) for cpu in times for mode in CPU_STATES]
            self._guests = [(str(cpu), mode) for cpu in times for mode in ("user", "nice")]
        seconds = [tick / hertz for ticks in times.values() for tick in ticks[:8]]
        yield _CPU, Columns(self._modes, seconds)
        seconds = [tick / hertz for ticks in times.values() for tick in ticks[8:]]
        yield _GUEST, Columns(self._guests, seconds)
        with suppress(CcagentError):
            isolated = read_parsed(node, f"{CPUS}/isolated", parse_cpu_list)
            yield _ISOLATED, [((str(cpu),), 1) for cpu in isolated]
        if node.exists(f"{CPUS}/cpu0/online"):  # as node_exporter, which has none otherwise
            with suppress(CcagentError):
                there = read_parsed(node, f"{CPUS}/present", parse_cpu_list)
                online = {*read_parsed(node, f"{CPUS}/online", parse_cpu_list)}
                yield _ONLINE, [((str(cpu),), int(cpu in online)) for cpu in there]
        yield from self._throttles(node)

    def _throttles(self, node: Node) -> Iterator[FamilyRows]:
        if self._throttled is None:
            self._throttled = list(_find_throttled(node))
        cores: dict[Labels, float] = {}
        packages: dict[Labels, float] = {}
        for name, chip, inner in self._throttled:
            where = f"{CPUS}/{name}/thermal_throttle"
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


def _find_throttled(node: Node) -> Iterator[tuple[str, str, str]]:
    """Yield name, socket and core of the hwthreads whose throttling is counted."""
    for name in list_names(node, CPUS):
        number = name.removeprefix("cpu")
        if not re.fullmatch("[0-9]{1,6}", number) or not node.exists(
            f"{CPUS}/{name}/thermal_throttle"
        ):
            continue
        with suppress(CcagentError):
            socket = read_topology_id(node, int(number), "physical_package_id")
            yield name, str(socket), str(read_topology_id(node, int(number), "core_id"))


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


def read_stat(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/stat."""
    stat = read_parsed(node, "proc/stat", parse_kernel_stat)
    for name, value in {**stat.events, "btime": stat.boot, **stat.tasks}.items():
        if name != "btime" or value:
            yield _EVENTS[name], [((), value)]


_INTERRUPTS = counter(
    "node_interrupts_total", "Interrupt details.", "cpu", "type", "info", "devices"
)
_SOFTIRQS = counter("node_softirqs_functions_total", "Softirq counts per CPU.", "cpu", "type")


def read_interrupts(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/interrupts: counts by hwthread and interrupt."""
    cpus, found = read_parsed(node, "proc/interrupts", parse_interrupts)
    yield (
        _INTERRUPTS,
        [
            ((str(cpu), each.name, each.chip, each.devices), count)
            for each in found
            for cpu, count in zip(cpus, each.counts, strict=True)
        ],
    )


def read_softirqs(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/softirqs: counts by hwthread and kind."""
    cpus, found = read_parsed(node, "proc/softirqs", parse_interrupts)
    yield (
        _SOFTIRQS,
        [
            ((str(cpu), each.name), count)
            for each in found
            for cpu, count in zip(cpus, each.counts, strict=True)
        ],
    )


_LOADS = tuple(gauge(f"node_load{n}", f"{n}m load average.") for n in (1, 5, 15))


def read_loadavg(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/loadavg: the load averages."""
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


def read_schedstat(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/schedstat: running and waiting times of tasks by CPU."""
    times = read_parsed(node, "proc/schedstat", parse_schedstat)
    labels = [(str(cpu),) for cpu in times]
    running, waiting, slices = _SCHEDSTAT
    yield running, Columns(labels, [each.ran / 1e9 for each in times.values()])
    yield waiting, Columns(labels, [each.waited / 1e9 for each in times.values()])
    yield slices, Columns(labels, [each.timeslices for each in times.values()])


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


def read_pressure(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/pressure. Raise NotHereError if the kernel lacks it."""
    missing = ""
    found = False
    for resource in ("cpu", "io", "memory", "irq"):
        try:
            pressures = read_parsed(node, f"proc/pressure/{resource}", parse_pressure)
        except NotHereError as error:
            missing = str(error)  # not the error: its traceback holds this reading
            continue
        except CcagentError as error:
            logger.warning("exporter: pressure: %s", error)
            continue
        found = True
        for extent, pressure in pressures.items():
            family = _PRESSURES.get((resource, extent))
            if family is not None:
                yield family, [((), pressure.total / 1e6)]
    if missing and not found:
        raise NotHereError(missing)


_LISTED_EVERY = 20
"""Scrapes after which the files of frequencies are listed again: a driver may be loaded late."""
_FREQUENCY = {
    name: gauge(f"node_cpu_{public}_hertz", text, "cpu")
    for name, public, text in (
        ("cpuinfo_cur_freq", "frequency", "Current CPU thread frequency in hertz."),
        ("cpuinfo_avg_freq", "frequency_avg", "Average CPU thread frequency in hertz."),
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


_GOVERNOR = gauge(
    "node_cpu_scaling_governor", "Current enabled CPU frequency governor.", "cpu", "governor"
)


class CpufreqCollector(Collector):
    """Frequencies of hwthreads in /sys/devices/system/cpu/cpu*/cpufreq, where the unit is kHz."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._names: list[str] = []
        self._paths: dict[Family, list[tuple[Labels, str]]] = {}
        self._governors: list[tuple[str, str, list[str]]] = []
        self._listed_before = 0

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the files of all hwthreads that have a frequency. They are listed now and then."""
        files = self.keep_files(node)
        names = node.list(CPUS)
        self._listed_before += 1
        if names != self._names or self._listed_before > _LISTED_EVERY:
            self._names, self._listed_before = names, 0
            self._paths = _list_frequencies(node, names)
            self._governors = [*_list_governors(node, names)]
        for family, paths in self._paths.items():
            yield family, read_numbers(files, paths, 1000)
        chosen = [(cpu, read_text(files, path), known) for path, cpu, known in self._governors]
        yield (
            _GOVERNOR,
            [
                ((cpu, name), int(name == governor))
                for cpu, governor, known in chosen
                for name in known
                if governor
            ],
        )


def _list_governors(node: Node, names: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the path of its governor, the number and the available governors by hwthread."""
    for name in sorted(each for each in names if each[:3] == "cpu" and each[3:].isdigit()):
        directory = f"{CPUS}/{name}/cpufreq"
        known = read_text(node, f"{directory}/scaling_available_governors").split()
        if known:
            yield f"{directory}/scaling_governor", name[3:], known


def _list_frequencies(node: Node, names: list[str]) -> dict[Family, list[tuple[Labels, str]]]:
    """Return the files of frequencies and their labels, by family."""
    found: dict[Family, list[tuple[Labels, str]]] = {each: [] for each in _FREQUENCY.values()}
    for name in sorted(each for each in names if each[:3] == "cpu" and each[3:].isdigit()):
        directory = f"{CPUS}/{name}/cpufreq"
        labels = (name[3:],)
        for file in _FREQUENCY.keys() & list_names(node, directory):
            found[_FREQUENCY[file]].append((labels, f"{directory}/{file}"))
    return found


_VM_EVENTS = re.compile(r"(oom_kill|pgpg|pswp|pg.*fault).*")


@lru_cache(2000)
def _name_memory(field: str) -> tuple[Family | None, int]:
    """Return the family and factor of a field of /proc/meminfo."""
    name = field.replace("(", "_").replace(")", "")
    is_count = field.startswith("HugePages_")
    name = name if is_count else f"{name}_bytes"
    family = name_family("gauge", f"node_memory_{name}", f"Memory information field {name}.")
    return family, 1 if is_count else 1024


def read_meminfo(node: Node) -> Iterator[FamilyRows]:
    """Read the values of all lines of /proc/meminfo."""
    for field, value in read_parsed(node, "proc/meminfo", parse_meminfo).items():
        family, factor = _name_memory(field)
        if family is not None:
            yield family, [((), value * factor)]


@lru_cache(2000)
def _name_event(name: str) -> Family | None:
    if not _VM_EVENTS.match(name):
        return None
    return name_family("untyped", f"node_vmstat_{name}", f"/proc/vmstat information field {name}.")


def read_vmstat(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/vmstat: page faults, paging, swapping and OOM kills."""
    for name, value in read_parsed(node, "proc/vmstat", parse_vmstat).items():
        family = _name_event(name)
        if family is not None:
            yield family, [((), value)]
