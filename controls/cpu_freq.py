"""Controls `cpu_freq.*`: governor, frequencies, boost and energy preference of the kernel.

Source: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst of Linux.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import (
    Control,
    ControlClass,
    FileFeature,
    InvertedFeature,
    Kind,
    Limits,
    read_integer,
    read_word,
)
from ccagent.controls.topology import DIRECTORY, list_cpus
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_BOOST = f"{DIRECTORY}/cpufreq"
_PSTATE = f"{DIRECTORY}/intel_pstate"


class _File(NamedTuple):
    name: str
    file: str
    kind: Kind
    description: str
    unit: str = ""


_READ_ONLY = (
    _File("cur_cpu_freq", "scaling_cur_freq", "integer", "Current frequency", "kHz"),
    _File("avail_freqs", "scaling_available_frequencies", "text", "Available frequencies", "kHz"),
    _File("avail_governors", "scaling_available_governors", "text", "Available governors"),
    _File("base_freq", "base_frequency", "integer", "Base frequency", "kHz"),
    _File("highest_perf", "amd_pstate_highest_perf", "integer", "Highest performance level"),
    _File("max_freq", "amd_pstate_max_freq", "integer", "Highest frequency", "kHz"),
    _File("hw_prefcore", "amd_pstate_hw_prefcore", "text", "Preferred cores by the hardware"),
    _File(
        "lowest_nonlinear_freq", "amd_pstate_lowest_nonlinear_freq", "integer",
        "Lowest efficient frequency", "kHz",
    ),
    _File(
        "avail_epps", "energy_performance_available_preferences", "text",
        "Available energy performance preferences",
    ),
    _File("scaling_driver", "scaling_driver", "text", "Driver of cpufreq"),
)  # fmt: skip
_MINIMUM = _File("min_cpu_freq", "scaling_min_freq", "integer", "Lowest frequency allowed", "kHz")
_MAXIMUM = _File("max_cpu_freq", "scaling_max_freq", "integer", "Highest frequency allowed", "kHz")
_GOVERNOR = _File("governor", "scaling_governor", "choice", "Governor of cpufreq")
_PREFERENCE = _File(
    "epp", "energy_performance_preference", "choice", "Energy performance preference"
)
_CHOICES = {
    "governor": "scaling_available_governors",
    "epp": "energy_performance_available_preferences",
}


class CpuFreq(ControlClass):
    """Governor, frequencies, boost and energy preference of each hwthread."""

    category = "cpu_freq"
    needs: ClassVar[str] = "a driver of cpufreq; virtual machines have none"

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this machine's driver."""
        directories = {
            str(number): f"{DIRECTORY}/cpu{number}/cpufreq" for number in list_cpus(node)
        }
        for file in _READ_ONLY:
            yield from _feature(node, file, directories)
        for file in (_GOVERNOR, _PREFERENCE):
            find = partial(_find_choices, node, _CHOICES[file.name])
            yield from _feature(node, file, directories, find)
        for file in (_MINIMUM, _MAXIMUM):
            yield from _feature(node, file, directories, partial(_find_range, node, file))
        yield from _boost(node, directories)


def _feature(
    node: Node,
    file: _File,
    directories: dict[str, str],
    find_limits: Callable[[str], Limits] | None = None,
) -> Iterator[Feature]:
    having = {
        number: path for number, path in directories.items() if node.exists(f"{path}/{file.file}")
    }
    if having:
        control = Control(
            category="cpu_freq",
            name=file.name,
            device_type="hwthread",
            description=file.description,
            kind=file.kind,
            unit=file.unit,
            is_writable=find_limits is not None,
        )
        yield FileFeature(node, control, having, file.file, find_limits=find_limits)


def _boost(node: Node, directories: dict[str, str]) -> Iterator[Feature]:
    """Return boost: a file per policy, a global file, or turbo of intel_pstate."""
    control = Control(
        category="cpu_freq",
        name="boost",
        device_type="hwthread",
        description="Frequencies above the base frequency",
        kind="boolean",
        is_writable=True,
    )
    own = {n: path for n, path in directories.items() if node.exists(f"{path}/boost")}
    if own:
        yield FileFeature(node, control, own, "boost")
    elif directories and node.exists(f"{_BOOST}/boost"):
        yield FileFeature(node, control, dict.fromkeys(directories, _BOOST), "boost")
    elif directories and node.exists(f"{_PSTATE}/no_turbo"):
        yield InvertedFeature(node, control, dict.fromkeys(directories, _PSTATE), "no_turbo")


def _find_choices(node: Node, file: str, directory: str) -> Limits:
    return Limits(choices=tuple(read_word(node, f"{directory}/{file}").split()))


def _find_range(node: Node, file: _File, directory: str) -> Limits:
    """Return the limits of the hardware, narrowed to the other bound: the kernel clamps to it."""
    low = read_integer(node, f"{directory}/cpuinfo_min_freq")
    high = read_integer(node, f"{directory}/cpuinfo_max_freq")
    if low is None or high is None:
        raise CcagentError(f"/{directory}: no cpuinfo_min_freq and cpuinfo_max_freq")
    if file is _MINIMUM:
        other = read_integer(node, f"{directory}/{_MAXIMUM.file}")
        return Limits(low, high if other is None else min(high, other))
    other = read_integer(node, f"{directory}/{_MINIMUM.file}")
    return Limits(low if other is None else max(low, other), high)
