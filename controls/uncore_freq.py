"""Controls `uncore_freq.*`: frequencies of Intel's uncore, through the kernel's driver.

Source: Documentation/admin-guide/pm/intel_uncore_frequency_scaling.rst of Linux.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    Control,
    ControlClass,
    DeviceType,
    FileFeature,
    Limits,
    list_names,
    read_integer,
)
from ccagent.controls.topology import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_UNCORE = f"{DIRECTORY}/intel_uncore_frequency"
_DIE = re.compile(r"package_([0-9]{2,4})_die_([0-9]{2,4})", re.ASCII)
_KHZ = 1000


class UncoreFreq(ControlClass):
    """Current, minimum and maximum uncore frequency of each socket."""

    category = "uncore_freq"
    needs: ClassVar[str] = "the driver intel_uncore_frequency: modprobe intel-uncore-frequency"

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of the dies, or of sockets if each has one die (LIKWID)."""
        dies = list_names(node, _UNCORE, _DIE)
        has_dies = any(int(match[2]) for match in dies)
        device_type: DeviceType = "die" if has_dies else "socket"
        directories = {
            str(number) if has_dies else str(int(match[1])): f"{_UNCORE}/{match[0]}"
            for number, match in enumerate(dies)
        }
        for name, file, text in (
            ("cur_uncore_freq", "current_freq_khz", "Current"),
            ("min_uncore_freq", "min_freq_khz", "Lowest"),
            ("max_uncore_freq", "max_freq_khz", "Highest"),
        ):
            having = {d: path for d, path in directories.items() if node.exists(f"{path}/{file}")}
            if not having:
                continue
            control = Control(
                category="uncore_freq",
                name=name,
                device_type=device_type,
                description=f"{text} frequency of the uncore",
                kind="integer",
                unit="MHz",
                is_writable=not name.startswith("cur"),
            )
            find = partial(_find_range, node, file)
            yield FileFeature(node, control, having, file, scale=_KHZ, find_limits=find)


def _find_range(node: Node, file: str, path: str) -> Limits:
    """Return the limits: the hardware's initial limits, and the other bound."""
    low = read_integer(node, f"{path}/initial_min_freq_khz")
    high = read_integer(node, f"{path}/initial_max_freq_khz")
    if file == "min_freq_khz":
        bound = read_integer(node, f"{path}/max_freq_khz")
        high = bound if high is None else min(high, bound or high)
    else:
        bound = read_integer(node, f"{path}/min_freq_khz")
        low = bound if low is None else max(low, bound or low)
    return Limits(None if low is None else low / _KHZ, None if high is None else high / _KHZ)
