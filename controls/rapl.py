"""Controls `rapl.*`: energy, power limits, time windows and enables of the kernel's powercap.

Source: Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c. The kernel
has one `enabled` per zone, for the first limit.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import (
    MICRO,
    NO_LIMITS,
    ControlClass,
    DeviceType,
    KernelFile,
    Limits,
    find_files,
    find_power_range,
    list_names,
    list_settable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_POWERCAP = "sys/class/powercap"
_ZONE = re.compile(r"intel-rapl:[0-9]{1,4}(?::[0-9]{1,4})?", re.ASCII)
_CONSTRAINT = re.compile(r"constraint_([0-9])_name", re.ASCII)
_PACKAGE = re.compile(r"package-([0-9]{1,4})(?:-die-([0-9]{1,4}))?", re.ASCII)
_WITH_TWO = frozenset({"pkg", "psys"})
"""Domains with two limits."""
_DOMAINS = {"core": "pp0", "uncore": "pp1", "dram": "dram"}
_ROUNDING = 0.02
"""The hardware stores power in steps of 1/8 W, and times as 2**y * (1 + z/4)."""
_TIME_ROUNDING = 0.3


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


_TITLES = {
    "pkg": "the package", "pp0": "the cores", "pp1": "the graphics", "dram": "the memory",
    "psys": "the platform",
}  # fmt: skip


def _constraints(node: Node, domain: str, zones: dict[str, str]) -> dict[int, str]:
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
            table = _tabulate(domain, _constraints(node, domain, zones))
            yield from find_files(node, "rapl", device_type, zones, table)
