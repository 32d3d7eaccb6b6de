"""Controls `uncore_freq.*`: frequencies of Intel's uncore, through the kernel's driver.

Source: Documentation/admin-guide/pm/intel_uncore_frequency_scaling.rst of Linux.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    ControlClass,
    KernelFile,
    Limits,
    find_files,
    list_names,
    list_settable,
    read_integer,
)
from ccagent.machine.cpus import CPUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_UNCORE = f"{CPUS}/intel_uncore_frequency"
_DIE = re.compile(r"package_([0-9]{2,4})_die_([0-9]{2,4})", re.ASCII)
_KHZ = 1000
_MINIMUM, _MAXIMUM = "min_freq_khz", "max_freq_khz"


def _find_range(file: str, node: Node, path: str) -> Limits:
    """Return the hardware's initial limits, narrowed to the other bound in effect."""
    low, high = (read_integer(node, f"{path}/initial_{each}") for each in (_MINIMUM, _MAXIMUM))
    if file == _MINIMUM:
        bound = read_integer(node, f"{path}/{_MAXIMUM}")
        high = bound if high is None else min(high, bound or high)
    else:
        bound = read_integer(node, f"{path}/{_MINIMUM}")
        low = bound if low is None else max(low, bound or low)
    return Limits(None if low is None else low / _KHZ, None if high is None else high / _KHZ)


_FILES = [
    KernelFile(f"{name}_uncore_freq", file, "integer", f"{text} frequency of the uncore", "MHz",
               limits, _KHZ)
    for name, file, text, limits in (
        ("cur", "current_freq_khz", "Current", None),
        ("min", _MINIMUM, "Lowest", partial(_find_range, _MINIMUM)),
        ("max", _MAXIMUM, "Highest", partial(_find_range, _MAXIMUM)),
    )
]  # fmt: skip


class UncoreFreq(ControlClass):
    """Current, minimum and maximum uncore frequency of each socket."""

    category = "uncore_freq"
    needs: ClassVar[str] = "the driver intel_uncore_frequency: modprobe intel-uncore-frequency"
    settable = list_settable("uncore_freq", _FILES)

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of the dies, or of sockets if each has one die (LIKWID)."""
        dies = list_names(node, _UNCORE, _DIE)
        has_dies = any(int(match[2]) for match in dies)
        directories = {
            str(number if has_dies else int(match[1])): f"{_UNCORE}/{match[0]}"
            for number, match in enumerate(dies)
        }
        return find_files(node, "uncore_freq", "die" if has_dies else "socket", directories, _FILES)
