"""Controls in model-specific registers: `prefetch.*` and turbo, by processor.

They need a readable /dev/cpu/*/msr (CONFIG_X86_MSR, CAP_SYS_RAWIO). A bit that disables a function
is inverted: 1 is on, as in LIKWID.
Source: Intel SDM volume 4, MSR_MISC_FEATURE_CONTROL, IA32_MISC_ENABLE; AMD64 APM volume 2,
PrefetchControl (CPUID Fn8000_0021_EAX[13]), HWCR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import Control, ControlClass, Feature
from ccagent.controls.topology import list_cpus, read_siblings
from ccagent.errors import CcagentError
from ccagent.machine.cpus import read_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.controls.control import Kind
    from ccagent.machine.cpus import CpuIdentity
    from ccagent.machine.node import Node

_SIZE = 8
_INTEL_PREFETCH, _INTEL_MISC = 0x1A4, 0x1A0
_AMD_PREFETCH, _AMD_HWCR = 0xC0000108, 0xC0010015


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

_INTEL_MODELS = frozenset({
    0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F,  # Nehalem, Westmere
    0x2A, 0x2D, 0x3A, 0x3E,  # Sandy Bridge, Ivy Bridge
    0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56,  # Haswell, Broadwell
    0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6,  # Skylake and its successors, Cascade Lake
    0x7D, 0x7E, 0x6A, 0x6C, 0x8C, 0x8D, 0xA7,  # Ice Lake, Tiger Lake, Rocket Lake
    0x8F, 0xCF, 0xAD, 0xAE,  # Sapphire Rapids, Emerald Rapids, Granite Rapids
})  # fmt: skip
_ZEN_FAMILIES = frozenset({0x17, 0x19, 0x1A})
_ZEN_4 = (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))
"""Models of family 19h with PrefetchControl."""


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
        self._node.write_file(path, value.to_bytes(_SIZE, "little"), self._bit.register)

    def resource(self, device: str) -> str:
        """Return register, bit and core: the hwthreads of a core share the register."""
        core = read_siblings(self._node, int(device))[0]
        return f"msr:{self._bit.register:x}:{self._bit.bit}:{core}"

    def _register(self, device: str) -> int:
        content = self._node.read_at(f"dev/cpu/{device}/msr", self._bit.register, _SIZE)
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
