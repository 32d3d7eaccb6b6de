"""Controls `amd_gpu.*`: the power cap of AMD's cards, through the kernel's hwmon.

Source: Documentation/gpu/amdgpu/thermal.rst of Linux. LIKWID has no controls for these cards. The
names follow LIKWID's `nvml.*`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    ControlClass,
    FileFeature,
    KernelFile,
    Limits,
    find_files,
    list_names,
    read_integer,
)
from ccagent.controls.topology import find_card

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_DEVICES = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_HWMON = re.compile(r"hwmon[0-9]{1,4}", re.ASCII)
_AMD = "0x1002"
_MICRO = 1_000_000


class _CardFeature(FileFeature):
    def find_device(self, number: str) -> str | None:
        """Return the address of a card from its index or address."""
        return find_card(number, self.devices)


def _find_range(node: Node, path: str) -> Limits:
    low = read_integer(node, f"{path}/power1_cap_min")
    high = read_integer(node, f"{path}/power1_cap_max")
    return Limits(max(low or 0, 1) / _MICRO, high / _MICRO if high else None)


_FILES = [
    KernelFile(name, file, "real", text, "W", find_limits, _MICRO, 0.02, _CardFeature)
    for name, file, text, find_limits in (
        ("power_limit_cur", "power1_cap", "Power limit", _find_range),
        ("power_limit_min", "power1_cap_min", "Lowest power limit", None),
        ("power_limit_max", "power1_cap_max", "Highest power limit", None),
        ("power_limit_default", "power1_cap_default", "Power limit at the start", None),
        ("power_usage", "power1_average", "Power", None),
    )
]


class AmdGpu(ControlClass):
    """Power and power cap of AMD's cards."""

    category = "amd_gpu"
    needs: ClassVar[str] = "cards of AMD with the driver amdgpu"

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of cards with a power sensor. Device ids are PCI addresses."""
        cards: dict[str, str] = {}
        for match in list_names(node, _DEVICES, _ADDRESS):
            path = f"{_DEVICES}/{match[0]}"
            if node.read_text(f"{path}/vendor").lower() != _AMD:
                continue
            for sensor in list_names(node, f"{path}/hwmon", _HWMON):
                if node.exists(f"{path}/hwmon/{sensor[0]}/power1_cap"):
                    cards[match[0].upper()] = f"{path}/hwmon/{sensor[0]}"
        return find_files(node, "amd_gpu", "amd_gpu", dict(sorted(cards.items())), _FILES)
