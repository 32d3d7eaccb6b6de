"""System collectors: uname, os, time, timex, filefd, entropy, selinux, dmi, processes."""

from __future__ import annotations

import os
import re
import resource
import struct
import time
from functools import cache
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, VanishedError
from ccagent.exporter.collector import Collector, list_names, read_number, read_text, unsigned
from ccagent.exporter.exposition import Family, counter, gauge
from ccagent.log import logger
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import parse_stat, parse_statm
from ccagent.machine.procfs.system import parse_file_nr, parse_kernel_stat

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_UNAME = gauge(
    "node_uname_info", "Labeled system information as provided by the uname system call.",
    "sysname", "release", "version", "machine", "nodename", "domainname",
)  # fmt: skip


def read_uname(node: Node) -> Iterator[FamilyRows]:
    """Read uname(2), and the domain from /proc/sys/kernel."""
    found = os.uname()
    domain = read_text(node, "proc/sys/kernel/domainname")
    words = (found.sysname, found.release, found.version, found.machine, found.nodename)
    yield _UNAME, [((*words, domain), 1)]


_OS_LABELS = (
    "build_id", "id", "id_like", "image_id", "image_version", "name", "pretty_name", "variant",
    "variant_id", "version", "version_codename", "version_id",
)  # fmt: skip
_OS = gauge(
    "node_os_info", f"A metric with a constant '1' value labeled by {', '.join(_OS_LABELS)}.",
    *_OS_LABELS,
)  # fmt: skip
_OS_VERSION = gauge(
    "node_os_version", "Metric containing the major.minor part of the OS version.",
    "id", "id_like", "name",
)  # fmt: skip
_RELEASE = re.compile(r"^([A-Z_]+)=(.*)$", re.MULTILINE)
_VERSION = re.compile(r"[0-9]+\.?[0-9]*", re.ASCII)


def read_os(node: Node) -> Iterator[FamilyRows]:
    """Read os-release(5): name and version of the distribution."""
    text = read_text(node, "etc/os-release") or read_text(node, "usr/lib/os-release")
    if not text:
        raise NotHereError("/etc/os-release: not found")
    found = {name.lower(): value.strip("\"'") for name, value in _RELEASE.findall(text)}
    yield _OS, [(tuple(found.get(name, "") for name in _OS_LABELS), 1)]
    version = _VERSION.match(found.get("version_id", ""))
    if version is not None:
        labels = tuple(found.get(name, "") for name in ("id", "id_like", "name"))
        number = float(version[0])
        yield _OS_VERSION, [(labels, int(number) if number.is_integer() else number)]


_TIME = gauge("node_time_seconds", "System time in seconds since epoch (1970).")
_ZONE = gauge("node_time_zone_offset_seconds", "System time zone offset in seconds.", "time_zone")
_AVAILABLE = gauge(
    "node_time_clocksource_available_info",
    "Available clocksources read from '/sys/devices/system/clocksource'.",
    "device", "clocksource",
)  # fmt: skip
_CURRENT = gauge(
    "node_time_clocksource_current_info",
    "Current clocksource read from '/sys/devices/system/clocksource'.", "device", "clocksource",
)  # fmt: skip
_SOURCES = "sys/devices/system/clocksource"


def read_time(node: Node) -> Iterator[FamilyRows]:
    """Read the clock and /sys/devices/system/clocksource."""
    now = node.clock.time()
    yield _TIME, [((), now)]
    zone = time.localtime(now)
    yield _ZONE, [((zone.tm_zone,), zone.tm_gmtoff)]
    available: list[tuple[Labels, float]] = []
    current: list[tuple[Labels, float]] = []
    for name in list_names(node, _SOURCES):
        if not name.startswith("clocksource"):
            continue
        device = name.removeprefix("clocksource")
        words = read_text(node, f"{_SOURCES}/{name}/available_clocksource").split()
        available += [((device, word), 1) for word in words]
        now_used = read_text(node, f"{_SOURCES}/{name}/current_clocksource")
        current.append(((device, now_used), 1))
    yield _AVAILABLE, available
    yield _CURRENT, current


_TIMEX = struct.Struct("@I4xqqqqi4xqqqqqqqqi4xqqqqqi44x")
"""struct timex of adjtimex(2) on machines of 64 bits."""
_NANO, _PPM16 = 0x2000, 1e6 * 65536
_ERROR = 5
_TIMEX_GAUGES = (
    ("offset_seconds", "Time offset in between local system and reference clock."),
    ("frequency_adjustment_ratio", "Local clock frequency adjustment."),
    ("maxerror_seconds", "Maximum error in seconds."),
    ("estimated_error_seconds", "Estimated error in seconds."),
    ("status", "Value of the status array bits."),
    ("loop_time_constant", "Phase-locked loop time constant."),
    ("tick_seconds", "Seconds between clock ticks."),
    ("pps_frequency_hertz", "Pulse per second frequency."),
    ("pps_jitter_seconds", "Pulse per second jitter."),
    ("pps_shift_seconds", "Pulse per second interval duration."),
    ("pps_stability_hertz", "Pulse per second stability, average of recent frequency changes."),
    ("pps_jitter_total", "Pulse per second count of jitter limit exceeded events."),
    ("pps_calibration_total", "Pulse per second count of calibration intervals."),
    ("pps_error_total", "Pulse per second count of calibration errors."),
    ("pps_stability_exceeded_total", "Pulse per second count of stability limit exceeded events."),
    ("tai_offset_seconds", "International Atomic Time (TAI) offset."),
    ("sync_status", "Is clock synchronized to a reliable server (1 = yes, 0 = no)."),
)
_TIMEX_FAMILIES = {
    name: (counter if name.endswith("_total") else gauge)(f"node_timex_{name}", text)
    for name, text in _TIMEX_GAUGES
}


def read_timex(node: Node) -> Iterator[FamilyRows]:
    """Call adjtimex(2) without changing the clock.

    Raise NotHereError on a recorded machine, NotPermittedError if the call is forbidden.
    """
    if not node.is_live:
        raise NotHereError("a recorded machine has no clock")
    for name, value in _read_timex().items():
        yield _TIMEX_FAMILIES[name], [((), value)]


@cache
def _load_library() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _read_timex() -> dict[str, float]:
    import ctypes

    buffer = ctypes.create_string_buffer(_TIMEX.size)
    state = _load_library().adjtimex(buffer)
    if state < 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotPermittedError(f"adjtimex: {reason}: set ProtectClock=no, see the README")
    (_, offset, frequency, most, estimate, status, constant, _, _, _, _, tick, pps, jitter, shift,
     stable, jitters, calibrations, errors, unstable, tai) = _TIMEX.unpack(buffer.raw)  # fmt: skip
    unit = 1e9 if status & _NANO else 1e6
    return {
        "offset_seconds": offset / unit,
        "frequency_adjustment_ratio": 1 + frequency / _PPM16,
        "maxerror_seconds": most / 1e6,
        "estimated_error_seconds": estimate / 1e6,
        "status": status,
        "loop_time_constant": constant,
        "tick_seconds": tick / 1e6,
        "pps_frequency_hertz": pps / _PPM16,
        "pps_jitter_seconds": jitter / unit,
        "pps_shift_seconds": shift,
        "pps_stability_hertz": stable / _PPM16,
        "pps_jitter_total": jitters,
        "pps_calibration_total": calibrations,
        "pps_error_total": errors,
        "pps_stability_exceeded_total": unstable,
        "tai_offset_seconds": tai,
        "sync_status": int(state != _ERROR),
    }


_ALLOCATED = gauge("node_filefd_allocated", "File descriptor statistics: allocated.")
_MAXIMUM = gauge("node_filefd_maximum", "File descriptor statistics: maximum.")


def read_filefd(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/sys/fs/file-nr: the number of open files and its limit."""
    allocated, maximum = read_parsed(node, "proc/sys/fs/file-nr", parse_file_nr)
    yield _ALLOCATED, [((), allocated)]
    yield _MAXIMUM, [((), maximum)]


_HUNG = counter(
    "node_kernel_hung_tasks_total",
    "Total number of tasks that have been detected as hung since the system booted.",
)


def read_kernel_hung(node: Node) -> Iterator[FamilyRows]:
    """Read the number of hung tasks. NotHereError before Linux 6.13."""
    content = node.read_single("proc/sys/kernel/hung_task_detect_count")
    yield _HUNG, [((), unsigned(content.strip()))]


_BITS = gauge("node_entropy_available_bits", "Bits of available entropy.")
_POOL = gauge("node_entropy_pool_size_bits", "Bits of entropy pool.")


def read_entropy(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/sys/kernel/random."""
    where = "proc/sys/kernel/random"
    yield _BITS, [((), unsigned(node.read_single(f"{where}/entropy_avail").strip()))]
    yield _POOL, [((), unsigned(node.read_single(f"{where}/poolsize").strip()))]


_SELINUX = gauge("node_selinux_enabled", "SELinux is enabled, 1 is true, 0 is false")
_MODE = gauge("node_selinux_current_mode", "Current SELinux enforcement mode")


def read_selinux(node: Node) -> Iterator[FamilyRows]:
    """Read /sys/fs/selinux/enforce: state of SELinux: disabled, permissive or enforcing."""
    mode = read_number(node, "sys/fs/selinux/enforce")
    yield _SELINUX, [((), int(mode is not None))]
    if mode is not None:
        yield _MODE, [((), mode)]


_DMI = {
    name: name.replace("sys_", "system_")
    for name in (
        "bios_date", "bios_release", "bios_vendor", "bios_version", "board_asset_tag",
        "board_name", "board_serial", "board_vendor", "board_version", "chassis_asset_tag",
        "chassis_serial", "chassis_vendor", "chassis_version", "product_family", "product_name",
        "product_serial", "product_sku", "product_uuid", "product_version", "sys_vendor",
    )
}  # fmt: skip
"""Labels by file name in /sys/class/dmi/id."""


class DmiCollector(Collector):
    """Names and versions of hardware and firmware, read once."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._family: Family | None = None
        self._values: Labels = ()

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /sys/class/dmi/id."""
        if self._family is None:
            where = "sys/class/dmi/id"
            files = set(node.list(where))
            found: dict[str, str] = {}
            for file, label in _DMI.items():
                if file in files and node.is_readable(f"{where}/{file}"):
                    found[label] = read_text(node, f"{where}/{file}").strip()
            self._values = tuple(found.values())
            self._family = gauge(
                "node_dmi_info",
                f"A metric with a constant '1' value labeled by {', '.join(_DMI.values())} if"
                " provided by DMI.",
                *found,
            )
        yield self._family, [(self._values, 1)]


_THREADS = gauge("node_processes_threads", "Allocated threads in system")
_MOST_THREADS = gauge("node_processes_max_threads", "Limit of threads in the system")
_PIDS = gauge("node_processes_pids", "Number of PIDs")
_MOST = gauge("node_processes_max_processes", "Number of max PIDs limit")
_STATES = gauge("node_processes_state", "Number of processes in each state.", "state")


def read_processes(node: Node) -> Iterator[FamilyRows]:
    """Read /proc."""
    threads = pids = 0
    states: dict[Labels, int] = {}
    for name in node.list("proc"):
        if not name.isdecimal():
            continue
        try:
            stat = parse_stat(node.read_single(f"proc/{name}/stat"))
        except (NotHereError, VanishedError):
            continue
        except CcagentError as error:
            logger.warning("exporter: processes: %s", error)
            continue
        state = (stat.state.decode("ascii", "replace"),)
        states[state] = states.get(state, 0) + 1
        pids += 1
        threads += stat.num_threads
    yield _THREADS, [((), threads)]
    yield _PIDS, [((), pids)]
    yield _STATES, states.items()
    for family, path in ((_MOST_THREADS, "threads-max"), (_MOST, "pid_max")):
        limit = read_number(node, f"proc/sys/kernel/{path}")
        if limit is not None:
            yield family, [((), limit)]


_PROCESS = {
    name: make(f"process_{name}", text)
    for name, make, text in (
        ("cpu_seconds_total", counter, "Total user and system CPU time spent in seconds."),
        ("resident_memory_bytes", gauge, "Resident memory size in bytes."),
        ("virtual_memory_bytes", gauge, "Virtual memory size in bytes."),
        ("virtual_memory_max_bytes", gauge,
            "Maximum amount of virtual memory available in bytes."),
        ("open_fds", gauge, "Number of open file descriptors."),
        ("max_fds", gauge, "Maximum number of open file descriptors."),
        ("start_time_seconds", gauge,
            "Start time of the process since unix epoch in seconds."),
    )
}  # fmt: skip


def read_process(node: Node) -> Iterator[FamilyRows]:
    """Read the resources of this process, as client libraries of Prometheus expose them."""
    if not node.is_live:
        raise NotHereError("a recorded machine does not run this process")
    stat = parse_stat(node.read_single("proc/self/stat"))
    boot = read_parsed(node, "proc/stat", parse_kernel_stat).boot
    limits = {
        name: resource.getrlimit(kind)[0]
        for name, kind in (
            ("virtual_memory_max_bytes", resource.RLIMIT_AS), ("max_fds", resource.RLIMIT_NOFILE)
        )
    }  # fmt: skip
    memory = parse_statm(node.read_single("proc/self/statm"))
    values = {
        "cpu_seconds_total": time.process_time(),
        "resident_memory_bytes": memory.resident * node.page_size,
        "virtual_memory_bytes": memory.size * node.page_size,
        # Linux before 6.2 has no size of this directory.
        "open_fds": os.stat("/proc/self/fd").st_size or len(node.list("proc/self/fd")),
        "start_time_seconds": boot + stat.starttime / node.clock_ticks,
        **{name: limit if limit >= 0 else float("inf") for name, limit in limits.items()},
    }
    for name, value in values.items():
        yield _PROCESS[name], [((), value)]
