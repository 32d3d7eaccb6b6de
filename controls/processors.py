"""Controls of processors: `rapl.*`, `prefetch.*` and turbo, `hsmp.*`.

`rapl.*`: energy, power limits, time windows and enables of the kernel's powercap. The kernel has
one `enabled` per zone, for the first limit.
Source: Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c.

`prefetch.*` and turbo: bits of model-specific registers, by processor. They need a readable
/dev/cpu/*/msr (CONFIG_X86_MSR, CAP_SYS_RAWIO). A bit that disables a function is inverted: 1 is on,
as in LIKWID.
Source: Intel SDM volume 4, MSR_MISC_FEATURE_CONTROL, IA32_MISC_ENABLE; AMD64 APM volume 2,
PrefetchControl (CPUID Fn8000_0021_EAX[13]), HWCR.

`hsmp.*`: power and clocks of AMD's sockets. The driver amd_hsmp answers an ioctl on /dev/hsmp. The
ioctl bypasses Node, because a file of a recorded machine can't answer it.
Source: Documentation/arch/x86/amd_hsmp.rst, arch/x86/include/uapi/asm/amd_hsmp.h of Linux.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import (
    NO_LIMITS,
    Control,
    ControlClass,
    DeviceType,
    Feature,
    Kind,
    Limits,
    list_cpus,
    list_names,
    read_id,
    read_siblings,
    real_text,
)
from ccagent.controls.kernel_files import (
    MICRO,
    KernelFile,
    find_files,
    find_power_range,
    list_settable,
)
from ccagent.errors import CcagentError, UnparsableError, raise_for
from ccagent.machine.cpus import read_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.machine.cpus import CpuIdentity
    from ccagent.machine.node import Node

    Call = Callable[[int, int, int | None], int]
    """Function of socket, message and argument. It returns the first word of the answer."""

_POWERCAP = "sys/class/powercap"
_ZONE = re.compile(r"intel-rapl:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})?", re.ASCII)
_CONSTRAINT = re.compile(r"constraint_([0-9])_name", re.ASCII)
_PACKAGE = re.compile(r"package-([0-9]{1,4})(?:-die-([0-9]{1,4}))?", re.ASCII)
_WITH_TWO = frozenset({"pkg", "psys"})
"""Domains with two limits."""
_DOMAINS = {"core": "pp0", "uncore": "pp1", "dram": "dram"}
_TITLES = {
    "pkg": "the package", "pp0": "the cores", "pp1": "the graphics", "dram": "the memory",
    "psys": "the platform",
}  # fmt: skip
_ROUNDING = 0.02
"""The hardware stores power in steps of 1/8 W, and times as 2**y * (1 + z/4)."""
_TIME_ROUNDING = 0.3

_MSR_SIZE = 8
_INTEL_PREFETCH, _INTEL_MISC = 0x1A4, 0x1A0
_AMD_PREFETCH, _AMD_HWCR = 0xC0000108, 0xC0010015
_INTEL_MODELS = frozenset({
    0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F,  # Nehalem, Westmere
    0x2A, 0x2D, 0x3A, 0x3E,  # Sandy Bridge, Ivy Bridge
    0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56,  # Haswell, Broadwell
    0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6,  # Skylake and its successors, Cascade Lake
    0x7D, 0x7E, 0x6A, 0x6C, 0x8C, 0x8D, 0xA7,  # Ice Lake, Tiger Lake, Rocket Lake
    0x8F, 0xCF, 0xAD, 0xAE,  # Sapphire Rapids, Emerald Rapids, Granite Rapids
})  # fmt: skip
_ZEN_FAMILIES = frozenset({0x17, 0x19, 0x1A})
_ZEN_4 = (range(0x10, 0x20), range(0x60, 0xB0))
"""Models of family 19h with PrefetchControl; 0x90 is MI300A."""

_HSMP = "dev/hsmp"
_MESSAGE = struct.Struct("=IHH8IHxx")
_COMMAND = 3 << 30 | _MESSAGE.size << 16 | 0xF8 << 8
"""_IOWR(0xF8, 0, struct hsmp_message)."""
_MILLI = 1000
_SOCKET = "physical_package_id"
_SET_LIMIT, _LIMIT, _HIGHEST = 5, 6, 7


class _Zone(NamedTuple):
    domain: str
    device_type: DeviceType
    device: str
    path: str


def _find_zones(node: Node) -> Iterator[_Zone]:
    names = [match[0] for match in list_names(node, _POWERCAP, _ZONE)]
    labels = {name: node.read_text(f"{_POWERCAP}/{name}/name") for name in names}
    packages = {n: _PACKAGE.fullmatch(label) for n, label in labels.items()}
    has_dies = any(match is not None and match[2] not in {None, "0"} for match in packages.values())
    devices: dict[str, str] = {}
    platforms = 0
    for name in names:
        path = f"{_POWERCAP}/{name}"
        package = packages[name]
        if package is not None:
            devices[name] = str(len(devices)) if has_dies else str(int(package[1]))
            yield _Zone("pkg", "die" if has_dies else "socket", devices[name], path)
        elif labels[name] == "psys":
            yield _Zone("psys", "socket", str(platforms), path)
            platforms += 1
        elif labels[name] in _DOMAINS:
            parent = devices.get(name.rpartition(":")[0])
            if parent is not None:
                domain = _DOMAINS[labels[name]]
                yield _Zone(domain, "die" if has_dies else "socket", parent, path)


def _tabulate(domain: str, constraints: dict[int, str]) -> Iterator[KernelFile]:
    """Yield the files of a domain's zones. constraints: LIKWID's suffixes by number."""
    title = _TITLES[domain]
    yield KernelFile(f"{domain}_energy", "energy_uj", "real", f"Energy of {title}", "J",
                     scale=MICRO)  # fmt: skip
    for number, suffix in constraints.items():
        name, constraint = f"{domain}_limit{suffix}", f"constraint_{number}"
        yield KernelFile(
            name, f"{constraint}_power_limit_uw", "real", f"Power limit of {title}", "W",
            partial(find_power_range, f"{constraint}_min_power_uw", f"{constraint}_max_power_uw"),
            MICRO, _ROUNDING,
        )  # fmt: skip
        yield KernelFile(
            f"{name}_time", f"{constraint}_time_window_us", "real",
            f"Time window of the limit of {title}", "s", Limits(1 / MICRO), MICRO, _TIME_ROUNDING,
        )  # fmt: skip
        highest = "max_limit" if suffix == "_2" else "tdp"
        yield KernelFile(f"{domain}_{highest}", f"{constraint}_max_power_uw", "real",
                         f"Highest power of {title}", "W", scale=MICRO)  # fmt: skip
        if suffix != "_2":
            yield KernelFile(f"{name}_enable", "enabled", "boolean",
                             f"Enable of the limit of {title}", "bool", NO_LIMITS)  # fmt: skip


def _find_constraints(node: Node, domain: str, zones: dict[str, str]) -> dict[int, str]:
    """Return the constraints by number, with LIKWID's suffix: only two domains have two limits."""
    suffixes: dict[int, str] = {}
    for path in zones.values():
        for match in list_names(node, path, _CONSTRAINT):
            name = node.read_text(f"{path}/{match[0]}")
            if domain not in _WITH_TWO:
                if name == "long_term":
                    suffixes[int(match[1])] = ""
            elif suffix := {"long_term": "_1", "short_term": "_2"}.get(name):
                suffixes[int(match[1])] = suffix
    return suffixes


class Rapl(ControlClass):
    """Energy and power limits of packages, memory, cores and the platform."""

    category = "rapl"
    needs: ClassVar[str] = "/sys/class/powercap with intel-rapl zones: modprobe intel_rapl_msr"
    settable = list_settable("rapl", chain.from_iterable(
        _tabulate(domain, {0: "_1", 1: "_2"} if domain in _WITH_TWO else {0: ""})
        for domain in _TITLES
    ))  # fmt: skip

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of this machine's zones."""
        by_domain: dict[tuple[str, DeviceType], dict[str, str]] = {}
        for zone in _find_zones(node):
            by_domain.setdefault((zone.domain, zone.device_type), {})[zone.device] = zone.path
        for (domain, device_type), zones in by_domain.items():
            table = _tabulate(domain, _find_constraints(node, domain, zones))
            yield from find_files(node, "rapl", device_type, zones, table)


class Bit(NamedTuple):
    """One bit that disables a function."""

    category: str
    name: str
    register: int
    bit: int
    description: str


_OF_INTEL = (
    Bit("prefetch", "l2_hwpf", _INTEL_PREFETCH, 0, "L2 hardware prefetcher"),
    Bit("prefetch", "l2_adj_pf", _INTEL_PREFETCH, 1, "L2 adjacent cache line prefetcher"),
    Bit("prefetch", "l1_dcu", _INTEL_PREFETCH, 2, "L1 data prefetcher"),
    Bit("prefetch", "l1_dcu_ip", _INTEL_PREFETCH, 3, "L1 data prefetcher by instruction pointer"),
    Bit("cpu_freq", "turbo", _INTEL_MISC, 38, "Turbo mode"),
)
_OF_AMD = (
    Bit("prefetch", "l1_stream", _AMD_PREFETCH, 0, "L1 stream prefetcher"),
    Bit("prefetch", "l1_stride", _AMD_PREFETCH, 1, "L1 stride prefetcher"),
    Bit("prefetch", "l1_region", _AMD_PREFETCH, 2, "L1 region prefetcher"),
    Bit("prefetch", "l2_stream", _AMD_PREFETCH, 3, "L2 stream prefetcher"),
    Bit("prefetch", "up_down", _AMD_PREFETCH, 5, "L2 up and down prefetcher"),
)
_TURBO_OF_AMD = (Bit("cpu_freq", "turbo_mode", _AMD_HWCR, 25, "Core performance boost"),)


def bits_of(processor: CpuIdentity | None) -> tuple[Bit, ...]:
    """Return the known bits of a processor; none if the table lacks the processor."""
    vendor, family, model = processor or ("", 0, 0)
    if vendor == "GenuineIntel" and family == 6 and model in _INTEL_MODELS:
        return _OF_INTEL
    if vendor in {"AuthenticAMD", "HygonGenuine"} and family in _ZEN_FAMILIES:
        has_prefetch = family == 0x1A or (
            family == 0x19 and any(model in models for models in _ZEN_4)
        )
        return (*_OF_AMD, *_TURBO_OF_AMD) if has_prefetch else _TURBO_OF_AMD
    return ()


class MsrFeature(Feature):
    """One bit of a register of each hwthread."""

    def __init__(self, node: Node, bit: Bit, devices: Sequence[str]) -> None:
        self.control = Control(
            bit.category, bit.name, "hwthread", "boolean", bit.description, is_writable=True
        )
        self._node = node
        self._bit = bit
        self.devices = devices

    def read(self, device: str) -> str:
        """Return 1 if the bit does not disable the function, else 0. Raise CcagentError."""
        return "0" if self._register(device) >> self._bit.bit & 1 else "1"

    def write(self, device: str, text: str) -> None:
        """Change only this bit of the register. Raise CcagentError."""
        mask = 1 << self._bit.bit
        value = self._register(device)
        value = value & ~mask if text == "1" else value | mask
        path = f"dev/cpu/{device}/msr"
        self._node.write_file(path, value.to_bytes(_MSR_SIZE, "little"), self._bit.register)

    def resource(self, device: str) -> str:
        """Return register, bit and core: the hwthreads of a core share the register."""
        core = read_siblings(self._node, int(device))[0]
        return f"msr:{self._bit.register:x}:{self._bit.bit}:{core}"

    def _register(self, device: str) -> int:
        content = self._node.read_at(f"dev/cpu/{device}/msr", self._bit.register, _MSR_SIZE)
        return int.from_bytes(content, "little")


class Msr(ControlClass):
    """Prefetchers and turbo of processors with known registers."""

    category = "prefetch"
    needs: ClassVar[str] = "/dev/cpu/*/msr (modprobe msr), CAP_SYS_RAWIO and a known processor"
    settable: ClassVar[Mapping[str, Kind]] = {
        f"{bit.category}.{bit.name}": "boolean" for bit in (*_OF_INTEL, *_OF_AMD, *_TURBO_OF_AMD)
    }

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the readable bits of this processor."""
        try:
            bits = bits_of(read_identity(node))
        except CcagentError:
            bits = ()
        if not bits:
            return
        devices = [str(n) for n in list_cpus(node) if node.is_readable(f"dev/cpu/{n}/msr")]
        for bit in bits if devices else ():
            feature = MsrFeature(node, bit, devices)
            try:
                feature.read(devices[0])
            except CcagentError:
                continue
            yield feature


class _HsmpValue(NamedTuple):
    name: str
    message: int
    kind: Kind
    unit: str
    description: str


_HSMP_VALUES = (
    _HsmpValue("smu_fw_ver", 2, "integer", "", "Version of the SMU's firmware"),
    _HsmpValue("proto_ver", 3, "integer", "", "Version of the protocol"),
    _HsmpValue("pkg_power", 4, "real", "W", "Power of the socket"),
    _HsmpValue("pkg_power_limit_cur", 6, "real", "W", "Power limit of the socket"),
    _HsmpValue("pkg_power_limit_max", 7, "real", "W", "Highest power limit of the socket"),
    _HsmpValue("pkg_prochot", 11, "boolean", "", "Throttled for heat"),
    _HsmpValue("pkg_cclk_thrtl_limit", 16, "integer", "MHz", "Limit of the cores' clock"),
    _HsmpValue("pkg_c0", 17, "integer", "%", "Residency in C0"),
)


class HsmpFeature(Feature):
    """A value of each socket."""

    tolerance = 0.02

    def __init__(self, value: _HsmpValue, sockets: Sequence[str], call: Call) -> None:
        self._value = value
        self.devices = sockets
        self._call = call
        self.control = Control(
            "hsmp", value.name, "socket", value.kind, value.description, value.unit,
            is_writable=value.message == _LIMIT,
        )  # fmt: skip

    def read(self, device: str) -> str:
        """Return the SMU's value. Raise CcagentError if the SMU does not answer."""
        answer = self._call(int(device), self._value.message, None)
        return real_text(answer / _MILLI) if self._value.kind == "real" else str(answer)

    def write(self, device: str, text: str) -> None:
        """Set the power limit. Raise CcagentError."""
        self._call(int(device), _SET_LIMIT, round(float(text) * _MILLI))

    def limits(self, device: str) -> Limits:
        """Return the maximum limit. Raise CcagentError."""
        return Limits(1 / _MILLI, self._call(int(device), _HIGHEST, None) / _MILLI)


class Hsmp(ControlClass):
    """Power limit and state of AMD's sockets."""

    category = "hsmp"
    needs: ClassVar[str] = "the driver amd_hsmp (/dev/hsmp): modprobe amd_hsmp"
    settable: ClassVar[Mapping[str, Kind]] = {
        f"hsmp.{value.name}": value.kind for value in _HSMP_VALUES if value.message == _LIMIT
    }

    def __init__(self, call: Call | None = None) -> None:
        self._call = call

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features that the SMU supports."""
        if not node.exists(_HSMP):
            return
        call = self._call
        if call is None:
            if not node.is_live:
                return
            call = _send_message
        sockets = [str(n) for n in sorted({read_id(node, n, _SOCKET) for n in list_cpus(node)})]
        for value in _HSMP_VALUES:
            yield HsmpFeature(value, sockets, call)


def _send_message(socket: int, message: int, argument: int | None) -> int:
    """Send a message to a socket's SMU. Return the first word. Raise CcagentError."""
    arguments = [argument or 0, *[0] * 7]
    size = 0 if message == _SET_LIMIT else 1
    count = 0 if argument is None else 1
    buffer = bytearray(_MESSAGE.pack(message, count, size, *arguments, socket))
    try:
        descriptor = os.open(f"/{_HSMP}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _COMMAND, buffer)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise_for(_HSMP, error)
    if len(buffer) != _MESSAGE.size:
        raise UnparsableError(f"/{_HSMP}: {len(buffer)} bytes")
    return int(_MESSAGE.unpack(buffer)[3])
