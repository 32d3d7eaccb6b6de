"""RAPL zones below /sys/class/powercap: names, counters and permissions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from ccagent.machine.node import Node

POWERCAP = "sys/class/powercap"

# intel-rapl-mmio repeats the same packages. The directory also has links to the zones of a package:
# intel-rapl:0:1 is beside intel-rapl:0.
ZONE = re.compile(r"((?:intel|amd)-rapl:[0-9]{1,6})(?::[0-9]{1,6})?", re.ASCII)

# Only root may read since Linux 5.10 (CVE-2020-8694).
FIX = (
    "let the agent's group read them with a udev rule,"
    ' SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="*-rapl:*",'
    ' RUN+="/bin/chgrp ccagent %S%p/energy_uj", RUN+="/bin/chmod 0440 %S%p/energy_uj",'
    " or give its service CapabilityBoundingSet= and AmbientCapabilities=CAP_DAC_READ_SEARCH"
)
"""The fix for unreadable counters, also for `ccagent doctor`."""

_NAME = re.compile(rb"package-([0-9]{1,6})(?:-die-[0-9]{1,6})?|(core|uncore|dram|psys)(?:-[0-9]+)?")
_METRICS = {b"core": "core_power", b"uncore": "uncore_power", b"dram": "mem_power",
            b"psys": "psys_power"}  # fmt: skip

MOST_WATTS = {
    "cpu_power": 1000.0, "mem_power": 400.0, "core_power": 1000.0, "uncore_power": 500.0,
    "psys_power": 5000.0,
}  # fmt: skip
"""Maximum power of a zone. It determines the time in which a counter wraps at most once: on AMD, 65
s for 65.7 kJ."""


class ZoneName(NamedTuple):
    """Metric of a zone. socket: None if the name contains none."""

    metric: str
    socket: int | None


class RaplZone(NamedTuple):
    """A zone: path of its counter in uJ, which wraps to 0 after `wraps_at` (0: unknown).

    socket: None for the whole platform.
    """

    path: str
    metric: str
    socket: int | None
    wraps_at: int


def parse_zone_name(content: bytes) -> ZoneName:
    """Parse the file `name`: package-0, package-0-die-1, core, uncore, dram, psys, psys-1.

    Raise UnparsableError. Source: rapl_domain_names and rapl_add_package() in
    drivers/powercap/intel_rapl_common.c.
    """
    found = _NAME.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not a zone of RAPL: {content[:80]!r}")
    if found[2]:
        return ZoneName(_METRICS[found[2]], None)
    return ZoneName("cpu_power", int(found[1]))


def parse_energy(content: bytes) -> int:
    """Parse energy_uj or max_energy_range_uj. Return uJ. Raise UnparsableError."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20:
        raise UnparsableError(f"not an energy: {content[:80]!r}")
    energy = int(text)
    if energy > LARGEST_UINT:
        raise UnparsableError(f"an energy is out of range: {energy}")
    return energy


def list_packages(node: Node) -> dict[str, str]:
    """Return the package of each zone by zone name. Raise NotHereError without zones."""
    listed = sorted(node.list(POWERCAP))
    packages = {name: found[1] for name in listed if (found := ZONE.fullmatch(name))}
    if not packages:
        raise NotHereError(f"/{POWERCAP}: no zone of RAPL")
    return packages


def read_zones(
    node: Node, packages: dict[str, str], errors: list[str]
) -> tuple[list[RaplZone], bool]:
    """Return the zones with a known socket, and whether all names could be read.

    Each unreadable name adds an error to `errors`.
    """
    zones: list[RaplZone] = []
    sockets: dict[str, int] = {}
    is_complete = True
    for name, package in packages.items():
        path = f"{POWERCAP}/{name}"
        try:
            metric, socket = read_parsed(node, f"{path}/name", parse_zone_name)
        except CcagentError as error:
            errors.append(str(error))
            is_complete = False
            continue
        if socket is not None:
            sockets[name] = socket
        elif metric != "psys_power":
            if package not in sockets:
                continue
            socket = sockets[package]
        zones.append(RaplZone(f"{path}/energy_uj", metric, socket, _range(node, path)))
    return zones, is_complete


def _range(node: Node, path: str) -> int:
    try:
        return read_parsed(node, f"{path}/max_energy_range_uj", parse_energy)
    except CcagentError:
        return 0
