"""Reader of power of sockets and memory, from the energy counters of RAPL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Count, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.powercap import FIX, POWERCAP, ZONE
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_NAME = re.compile(rb"package-([0-9]{1,6})(?:-die-[0-9]{1,6})?|(core|uncore|dram|psys)(?:-[0-9]+)?")
_METRICS = {b"core": "core_power", b"uncore": "uncore_power", b"dram": "mem_power",
            b"psys": "psys_power"}  # fmt: skip

_REFUSED = "only root may read the energy counters"


class ZoneName(NamedTuple):
    """Metric of a zone. socket: None if its name has none."""

    metric: str
    socket: int | None


class Zone(NamedTuple):
    """A zone: path of its counter in uJ, which wraps to 0 after `wraps_at` (0: unknown)."""

    path: str
    metric: str
    scope: Scope
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


class PowerReader(Reader[ReaderSettings]):
    """Power of packages, memory, cores, graphics and the platform: of sockets, and of the node.

    The value of the node is the sum over its sockets; the dies of a package make one socket.
    """

    name = "power"
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_power": Metric(
            unit="W",
            type="socket",
            description="power of the whole CPU package",
            source="/sys/class/powercap/*-rapl:*, package-*: energy_uj",
            scale=1e-6,
        ),
        "mem_power": Metric(
            unit="W",
            type="socket",
            description="power of the memory at a socket; not part of cpu_power",
            source="/sys/class/powercap/*-rapl:*, dram: energy_uj",
            scale=1e-6,
        ),
        "core_power": Metric(
            unit="W",
            type="socket",
            description="power of the cores of a package, on AMD of its first core; part of"
            " cpu_power",
            source="/sys/class/powercap/*-rapl:*, core: energy_uj",
            scale=1e-6,
            is_default=False,
        ),
        "uncore_power": Metric(
            unit="W",
            type="socket",
            description="power of the graphics in a package; part of cpu_power",
            source="/sys/class/powercap/*-rapl:*, uncore: energy_uj",
            scale=1e-6,
            is_default=False,
        ),
        "psys_power": Metric(
            unit="W",
            type="node",
            description="power of the platform, if its vendor provides it",
            source="/sys/class/powercap/*-rapl:*, psys: energy_uj",
            scale=1e-6,
            is_default=False,
        ),
    }

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._packages: dict[str, str] = {}
        self._zones: list[Zone] = []
        self._groups: dict[tuple[str, Scope], list[Zone]] = {}
        self._before: dict[str, int] = {}
        self._grown: dict[str, int] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of RAPL."""
        from ccagent.agents.metrics.readers.power_checks import require_rapl

        yield require_rapl(node)

    def read(self, node: Node) -> Iterable[Count]:
        """Read each zone's energy_uj. Raise NotHereError without zones.

        Raise NotPermittedError with the fix if this user may read none.
        """
        self.errors = []
        listed = sorted(node.list(POWERCAP))
        packages = {name: found[1] for name in listed if (found := ZONE.fullmatch(name))}
        if not packages:
            raise NotHereError(f"/{POWERCAP}: no zone of RAPL")
        is_new = packages != self._packages and self._find(node, packages)
        energies = self._energies(node)
        self._add_deltas(energies)
        counts: list[Count] = []
        for (metric, scope), zones in self._groups.items():
            if any(zone.path not in energies for zone in zones):
                continue
            if len(zones) == 1:
                value = energies[zones[0].path]
                counts.append(Count(metric, value, scope, zones[0].wraps_at))
            elif not is_new:
                # Zones wrap at different times: sum their deltas.
                counts.append(Count(metric, sum(self._grown[zone.path] for zone in zones), scope))
        return counts

    def _find(self, node: Node, packages: dict[str, str]) -> bool:
        """Find the zones and the package of each. Return whether they have changed."""
        zones: list[Zone] = []
        sockets: dict[str, int] = {}
        self._packages = packages
        for name, package in packages.items():
            path = f"{POWERCAP}/{name}"
            try:
                metric, socket = read_parsed(node, f"{path}/name", parse_zone_name)
            except CcagentError as error:
                self.errors.append(str(error))
                self._packages = {}
                continue
            if socket is not None:
                sockets[name] = socket
            elif metric != "psys_power" and package not in sockets:
                continue
            scope = NODE if metric == "psys_power" else Scope("socket", str(sockets[package]))
            zones.append(Zone(f"{path}/energy_uj", metric, scope, _range(node, path)))
        if zones == self._zones:
            return False
        had_others = bool(self._zones)
        self._zones = zones
        self._before, self._grown, self._groups = {}, {}, {}
        for zone in zones:
            self._groups.setdefault((zone.metric, zone.scope), []).append(zone)
            if zone.scope != NODE:
                self._groups.setdefault((zone.metric, NODE), []).append(zone)
        return had_others

    def _energies(self, node: Node) -> dict[str, int]:
        """Return the counters by path. Unreadable ones are skipped."""
        energies: dict[str, int] = {}
        forbidden = ""
        for zone in self._zones:
            try:
                energies[zone.path] = read_parsed(node, zone.path, parse_energy)
            except NotHereError:
                continue
            except NotPermittedError as error:
                forbidden = forbidden or f"{error}: {_REFUSED}; {FIX}"
            except CcagentError as error:
                self.errors.append(str(error))
        if forbidden and not energies:
            raise NotPermittedError(forbidden)
        if forbidden:
            self.errors.append(forbidden)
        return energies

    def _add_deltas(self, energies: dict[str, int]) -> None:
        """Add the deltas of all zones."""
        for zone in self._zones:
            energy = energies.get(zone.path)
            if energy is None:
                continue
            before = self._before.get(zone.path, energy)
            delta = energy - before
            if delta < 0:
                delta = delta + zone.wraps_at + 1 if zone.wraps_at >= before else energy
            self._grown[zone.path] = self._grown.get(zone.path, 0) + delta
            self._before[zone.path] = energy


def _range(node: Node, path: str) -> int:
    try:
        return read_parsed(node, f"{path}/max_energy_range_uj", parse_energy)
    except CcagentError:
        return 0
