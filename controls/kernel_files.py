"""Controls in files of the kernel: `cpu_freq.*`, `uncore_freq.*` and `os.*`, as tables of files.

Sources: of Linux, Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst, amd-pstate.rst and
intel_uncore_frequency_scaling.rst; admin-guide/sysctl/{kernel,vm}.rst; mm/transhuge.rst.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import (
    NO_LIMITS,
    NODE_DEVICE,
    Control,
    ControlClass,
    Feature,
    Limits,
    list_cpus,
    list_names,
    real_text,
)
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import CPUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ccagent.controls.control import DeviceType, Kind
    from ccagent.machine.node import Node

MICRO = 1_000_000

_GOVERNORS, _PREFERENCES = (
    "scaling_available_governors", "energy_performance_available_preferences",
)  # fmt: skip
_LOWEST, _HIGHEST = "scaling_min_freq", "scaling_max_freq"

_UNCORE = f"{CPUS}/intel_uncore_frequency"
_DIE = re.compile(r"package_([0-9]{2,4})_die_([0-9]{2,4})", re.ASCII)
_KHZ = 1000
_UNCORE_LOWEST, _UNCORE_HIGHEST = "min_freq_khz", "max_freq_khz"

_NUMBER = re.compile(rb"-?[0-9]{1,20}")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


class FileFeature(Feature):
    """A control with one file `DIRECTORY/FILE` per device.

    directories: by device id, from the machine's list of devices.
    """

    def __init__(
        self, node: Node, category: str, device_type: DeviceType, row: KernelFile,
        directories: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.control = Control(
            category, row.name, device_type, row.kind, row.description, row.unit,
            is_writable=row.limits is not None,
        )  # fmt: skip
        self.devices = tuple(directories)
        self.tolerance = row.tolerance
        self._node = node
        self._row = row
        self._directories = directories

    def read(self, device: str) -> str:
        """Return the value in the file. Raise CcagentError if it can't be read."""
        path = self._path(device)
        return self._parse(self._node.read_single(path), path)

    def write(self, device: str, text: str) -> None:
        """Write a value to the file. Raise CcagentError if that fails."""
        self._node.write_file(self._path(device), self._format(text))

    def limits(self, device: str) -> Limits:
        """Return the machine's current limits. Raise CcagentError."""
        limits = self._row.limits or NO_LIMITS
        return limits(self._node, self._directories[device]) if callable(limits) else limits

    def resource(self, device: str) -> str:
        """Return the path of the file without links: cpus share cpufreq policies through links."""
        return self._node.resolve(self._path(device))

    def _path(self, device: str) -> str:
        return f"{self._directories[device]}/{self._row.file}"

    def _parse(self, content: bytes, path: str) -> str:
        text = content.strip()
        if self.control.kind in {"integer", "real"}:
            if not _NUMBER.fullmatch(text):
                raise UnparsableError(f"/{path}: not a whole number: {text[:40]!r}")
            number = int(text)
            if self.control.kind == "integer":
                return str(number // self._row.scale)
            return real_text(number / self._row.scale)
        return text.decode("utf-8", "replace")

    def _format(self, text: str) -> bytes:
        match self.control.kind:
            case "integer":
                return str(int(text) * self._row.scale).encode()
            case "real":
                return str(round(float(text) * self._row.scale)).encode()
            case _:
                return text.encode()


class InvertedFeature(FileFeature):
    """A boolean with an inverted file: no_turbo."""

    def _parse(self, content: bytes, path: str) -> str:
        return _inverted(super()._parse(content, path), path)

    def _format(self, text: str) -> bytes:
        return _inverted(text, "").encode()


class BracketedFeature(FileFeature):
    """A file with all choices, and the current one in brackets: `always [madvise] never`.

    The choices in the file are the limits.
    """

    def limits(self, device: str) -> Limits:
        """Return the choices. Raise CcagentError."""
        text = self._node.read_single(self._path(device)).decode("utf-8", "replace")
        return Limits(choices=tuple(text.replace("[", "").replace("]", "").split()))

    def _parse(self, content: bytes, path: str) -> str:
        match = _BRACKETS.search(content.decode("utf-8", "replace"))
        if match is None:
            raise UnparsableError(f"/{path}: no choice in brackets: {content[:40]!r}")
        return match[1]


class KernelFile(NamedTuple):
    """A control in a file of each device's directory: a row in the table of a class.

    limits: of all devices, or a function that finds them in a device's directory; None if the
    control can only be read. scale: units of the file per unit of the control.
    """

    name: str
    file: str
    kind: Kind
    description: str
    unit: str = ""
    limits: Limits | Callable[[Node, str], Limits] | None = None
    scale: int = 1
    tolerance: float = 0.0
    form: type[FileFeature] = FileFeature


def list_settable(category: str, table: Iterable[KernelFile]) -> dict[str, Kind]:
    """Return the kinds of the controls of a table that can be set, by their full names."""
    return {f"{category}.{row.name}": row.kind for row in table if row.limits is not None}


def find_files(
    node: Node, category: str, device_type: DeviceType, directories: Mapping[str, str],
    table: Iterable[KernelFile],
) -> Iterator[Feature]:  # fmt: skip
    """Yield the features of rows whose file a device has."""
    for row in table:
        having = {d: path for d, path in directories.items() if node.exists(f"{path}/{row.file}")}
        if having:
            yield row.form(node, category, device_type, row, having)


def find_power_range(low: str, high: str, node: Node, directory: str) -> Limits:
    """Return the range in W of a power limit, without 0 W. low, high: files of its ends in uW."""
    least = read_integer(node, f"{directory}/{low}") or 0
    most = read_integer(node, f"{directory}/{high}")
    return Limits(max(least, 1) / MICRO, most / MICRO if most else None)


def read_integer(node: Node, path: str) -> int | None:
    """Return the whole number in a file; None without the file. Raise CcagentError."""
    try:
        text = node.read_single(path).strip()
    except NotHereError:
        return None
    return int(text) if _NUMBER.fullmatch(text) else None


def _inverted(text: str, path: str) -> str:
    if text not in {"0", "1"}:
        raise UnparsableError(f"/{path}: neither 0 nor 1: {text[:40]!r}")
    return "1" if text == "0" else "0"


def _find_choices(file: str, node: Node, directory: str) -> Limits:
    return Limits(choices=tuple(node.read_text(f"{directory}/{file}").split()))


def _find_cpu_range(file: str, node: Node, directory: str) -> Limits:
    """Return the limits of the hardware, narrowed to the other bound: the kernel clamps to it."""
    low = read_integer(node, f"{directory}/cpuinfo_min_freq")
    high = read_integer(node, f"{directory}/cpuinfo_max_freq")
    if low is None or high is None:
        raise CcagentError(f"/{directory}: no cpuinfo_min_freq and cpuinfo_max_freq")
    if file == _LOWEST:
        other = read_integer(node, f"{directory}/{_HIGHEST}")
        return Limits(low, high if other is None else min(high, other))
    other = read_integer(node, f"{directory}/{_LOWEST}")
    return Limits(low if other is None else max(low, other), high)


_CPU_FREQUENCIES = (
    KernelFile("cur_cpu_freq", "scaling_cur_freq", "integer", "Current frequency", "kHz"),
    KernelFile(
        "avail_freqs", "scaling_available_frequencies", "text", "Available frequencies", "kHz"
    ),
    KernelFile("avail_governors", _GOVERNORS, "text", "Available governors"),
    KernelFile("base_freq", "base_frequency", "integer", "Base frequency", "kHz"),
    KernelFile("highest_perf", "amd_pstate_highest_perf", "integer", "Highest performance level"),
    KernelFile("max_freq", "amd_pstate_max_freq", "integer", "Highest frequency", "kHz"),
    KernelFile(
        "hw_prefcore", "amd_pstate_hw_prefcore", "text", "Preferred cores by the hardware"
    ),
    KernelFile(
        "lowest_nonlinear_freq", "amd_pstate_lowest_nonlinear_freq", "integer",
        "Lowest efficient frequency", "kHz",
    ),
    KernelFile(
        "avail_epps", _PREFERENCES, "text", "Available energy performance preferences"
    ),
    KernelFile("scaling_driver", "scaling_driver", "text", "Driver of cpufreq"),
    KernelFile(
        "governor", "scaling_governor", "choice", "Governor of cpufreq", "",
        partial(_find_choices, _GOVERNORS),
    ),
    KernelFile(
        "epp", "energy_performance_preference", "choice", "Energy performance preference", "",
        partial(_find_choices, _PREFERENCES),
    ),
    KernelFile(
        "min_cpu_freq", _LOWEST, "integer", "Lowest frequency allowed", "kHz",
        partial(_find_cpu_range, _LOWEST),
    ),
    KernelFile(
        "max_cpu_freq", _HIGHEST, "integer", "Highest frequency allowed", "kHz",
        partial(_find_cpu_range, _HIGHEST),
    ),
)  # fmt: skip
_BOOST = KernelFile(
    "boost", "boost", "boolean", "Frequencies above the base frequency", "", NO_LIMITS
)
_TURBO = _BOOST._replace(file="no_turbo", form=InvertedFeature)


class CpuFreq(ControlClass):
    """Governor, frequencies, boost and energy preference of each hwthread."""

    category = "cpu_freq"
    needs: ClassVar[str] = "a driver of cpufreq; virtual machines have none"
    settable = list_settable("cpu_freq", (*_CPU_FREQUENCIES, _BOOST))

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this machine's driver."""
        directories = {str(number): f"{CPUS}/cpu{number}/cpufreq" for number in list_cpus(node)}
        yield from find_files(node, "cpu_freq", "hwthread", directories, _CPU_FREQUENCIES)
        # A file per policy, a global file, or turbo of intel_pstate.
        for row, places in (
            (_BOOST, directories),
            (_BOOST, dict.fromkeys(directories, f"{CPUS}/cpufreq")),
            (_TURBO, dict.fromkeys(directories, f"{CPUS}/intel_pstate")),
        ):
            boost = list(find_files(node, "cpu_freq", "hwthread", places, [row]))
            if boost:
                yield from boost
                return


def _find_uncore_range(file: str, node: Node, path: str) -> Limits:
    """Return the hardware's initial limits, narrowed to the other bound in effect."""
    low, high = (
        read_integer(node, f"{path}/initial_{each}") for each in (_UNCORE_LOWEST, _UNCORE_HIGHEST)
    )
    if file == _UNCORE_LOWEST:
        bound = read_integer(node, f"{path}/{_UNCORE_HIGHEST}")
        high = bound if high is None else min(high, bound or high)
    else:
        bound = read_integer(node, f"{path}/{_UNCORE_LOWEST}")
        low = bound if low is None else max(low, bound or low)
    return Limits(None if low is None else low / _KHZ, None if high is None else high / _KHZ)


_UNCORE_FREQUENCIES = [
    KernelFile(f"{name}_uncore_freq", file, "integer", f"{text} frequency of the uncore", "MHz",
               limits, _KHZ)
    for name, file, text, limits in (
        ("cur", "current_freq_khz", "Current", None),
        ("min", _UNCORE_LOWEST, "Lowest", partial(_find_uncore_range, _UNCORE_LOWEST)),
        ("max", _UNCORE_HIGHEST, "Highest", partial(_find_uncore_range, _UNCORE_HIGHEST)),
    )
]  # fmt: skip


class UncoreFreq(ControlClass):
    """Current, minimum and maximum uncore frequency of each socket."""

    category = "uncore_freq"
    needs: ClassVar[str] = "the driver intel_uncore_frequency: modprobe intel-uncore-frequency"
    settable = list_settable("uncore_freq", _UNCORE_FREQUENCIES)

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of the dies, or of sockets if each has one die (LIKWID)."""
        dies = list_names(node, _UNCORE, _DIE)
        has_dies = any(int(match[2]) for match in dies)
        directories = {
            str(number if has_dies else int(match[1])): f"{_UNCORE}/{match[0]}"
            for number, match in enumerate(dies)
        }
        return find_files(
            node,
            "uncore_freq",
            "die" if has_dies else "socket",
            directories,
            _UNCORE_FREQUENCIES,
        )


_SETTINGS = {
    "proc/sys/kernel": (
        KernelFile(
            "numa_balancing", "numa_balancing", "integer",
            "Automatic NUMA balancing: 0 off, 1 on, 2 memory tiering", "", Limits(0, 3),
        ),
        KernelFile(
            "numa_balancing_scan_delay", "numa_balancing_scan_delay_ms", "integer",
            "Delay until a task is scanned", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_period_min", "numa_balancing_scan_period_min_ms", "integer",
            "Shortest time between scans", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_period_max", "numa_balancing_scan_period_max_ms", "integer",
            "Longest time between scans", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_size", "numa_balancing_scan_size_mb", "integer",
            "Memory that one scan covers", "MB",
        ),
        KernelFile(
            "numa_balancing_promote_rate_limit", "numa_balancing_promote_rate_limit_MBps",
            "integer", "Limit of promotions between tiers", "MB/s",
        ),
    ),
    "sys/kernel/mm/transparent_hugepage": (
        KernelFile(
            "transparent_hugepage", "enabled", "choice", "Transparent huge pages", "",
            NO_LIMITS, form=BracketedFeature,
        ),
    ),
    "proc/sys/vm": (
        KernelFile(
            "swappiness", "swappiness", "integer", "Preference for swapping", "", Limits(0, 200),
        ),
    ),
}  # fmt: skip
"""Rows by directory."""


class OsSettings(ControlClass):
    """NUMA balancing, transparent huge pages and swappiness."""

    category = "os"
    needs: ClassVar[str] = "a kernel with CONFIG_NUMA_BALANCING, CONFIG_TRANSPARENT_HUGEPAGE"
    settable = list_settable("os", chain.from_iterable(_SETTINGS.values()))

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this kernel."""
        for directory, table in _SETTINGS.items():
            yield from find_files(node, "os", "node", {NODE_DEVICE: directory}, table)
