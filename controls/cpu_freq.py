"""Controls `cpu_freq.*`: governor, frequencies, boost and energy preference of the kernel.

Source: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst of Linux.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    NO_LIMITS,
    ControlClass,
    InvertedFeature,
    KernelFile,
    Limits,
    find_files,
    list_settable,
    read_integer,
)
from ccagent.controls.topology import list_cpus
from ccagent.errors import CcagentError
from ccagent.machine.cpus import CPUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_GOVERNORS, _PREFERENCES = (
    "scaling_available_governors", "energy_performance_available_preferences",
)  # fmt: skip
_MINIMUM, _MAXIMUM = "scaling_min_freq", "scaling_max_freq"


def _find_choices(file: str, node: Node, directory: str) -> Limits:
    return Limits(choices=tuple(node.read_text(f"{directory}/{file}").split()))


def _find_range(file: str, node: Node, directory: str) -> Limits:
    """Return the limits of the hardware, narrowed to the other bound: the kernel clamps to it."""
    low = read_integer(node, f"{directory}/cpuinfo_min_freq")
    high = read_integer(node, f"{directory}/cpuinfo_max_freq")
    if low is None or high is None:
        raise CcagentError(f"/{directory}: no cpuinfo_min_freq and cpuinfo_max_freq")
    if file == _MINIMUM:
        other = read_integer(node, f"{directory}/{_MAXIMUM}")
        return Limits(low, high if other is None else min(high, other))
    other = read_integer(node, f"{directory}/{_MINIMUM}")
    return Limits(low if other is None else max(low, other), high)


_FILES = (
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
        "min_cpu_freq", _MINIMUM, "integer", "Lowest frequency allowed", "kHz",
        partial(_find_range, _MINIMUM),
    ),
    KernelFile(
        "max_cpu_freq", _MAXIMUM, "integer", "Highest frequency allowed", "kHz",
        partial(_find_range, _MAXIMUM),
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
    settable = list_settable("cpu_freq", (*_FILES, _BOOST))

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this machine's driver."""
        directories = {str(number): f"{CPUS}/cpu{number}/cpufreq" for number in list_cpus(node)}
        yield from find_files(node, "cpu_freq", "hwthread", directories, _FILES)
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
