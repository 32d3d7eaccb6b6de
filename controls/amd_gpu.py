"""Controls `amd_gpu.*`: the power cap of AMD's cards, through the kernel's hwmon.

Source: Documentation/gpu/amdgpu/thermal.rst of Linux. LIKWID has no controls for these cards. The
names follow LIKWID's `nvml.*`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    MICRO,
    ControlClass,
    FileFeature,
    KernelFile,
    find_files,
    find_power_range,
    list_names,
    list_settable,
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


class _CardFeature(FileFeature):
    def find_device(self, number: str) -> str | None:
        """Return the address of a card from its index or address."""
        return find_card(number, self.devices)


_FILES = [
    KernelFile(name, file, "real", text, "W", limits, MICRO, 0.02, _CardFeature)
    for name, file, text, limits in (
        ("power_limit_cur", "power1_cap", "Power limit",
         partial(find_power_range, "power1_cap_min", "power1_cap_max")),
        ("power_limit_min", "power1_cap_min", "Lowest power limit", None),
        ("power_limit_max", "power1_cap_max", "Highest power limit", None),
        ("power_limit_default", "power1_cap_default", "Power limit at the start", None),
        ("power_usage", "power1_average", "Power", None),
    )
]  # fmt: skip


class AmdGpu(ControlClass):
    """Power and power cap of AMD's cards."""

    category = "amd_gpu"
    needs: ClassVar[str] = "cards of AMD with the driver amdgpu"
    settable = list_settable("amd_gpu", _FILES)

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
