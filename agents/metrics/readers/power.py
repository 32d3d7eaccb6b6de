"""Reader of power of sockets and memory, from the energy counters of RAPL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Count, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.energy_counter import EnergyCounter, EnergyReading
from ccagent.machine.parsed import read_parsed
from ccagent.machine.powercap import FIX, POWERCAP, ZONE
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.keeper import Keeper
    from ccagent.machine.node import Node

_NAME = re.compile(rb"package-([0-9]{1,6})(?:-die-[0-9]{1,6})?|(core|uncore|dram|psys)(?:-[0-9]+)?")
_METRICS = {b"core": "core_power", b"uncore": "uncore_power", b"dram": "mem_power",
            b"psys": "psys_power"}  # fmt: skip

MOST_WATTS = {
    "cpu_power": 1000.0, "mem_power": 400.0, "core_power": 1000.0, "uncore_power": 500.0,
    "psys_power": 5000.0,
}  # fmt: skip
"""Power that a zone does not exceed. It bounds the time in which a counter wraps at most once: on
AMD, 65 s for 65.7 kJ."""

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
        self._counters: dict[str, EnergyCounter] = {}
        self._first: dict[str, int] = {}
        self._keeper: Keeper | None = None

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
        keeper = self._keeper
        if keeper is not None:
            with keeper.lock:
                counts = self._read_counts(node, packages)
            keeper.note()
        else:
            counts = self._read_counts(node, packages)
        self._keep(node)
        return counts

    def close(self) -> None:
        """End the thread that follows the counters between readings."""
        if self._keeper is not None:
            self._keeper.close()

    def _read_counts(self, node: Node, packages: dict[str, str]) -> list[Count]:
        """Return the counters without their wraps; none of zones whose delta is unknown."""
        is_new = packages != self._packages and self._find(node, packages)
        energies = self._energies(node)
        self._follow(node, energies)
        unknown = self._take_flaws()
        counts: list[Count] = []
        for (metric, scope), zones in self._groups.items():
            if any(zone.path not in energies or zone.path in unknown for zone in zones):
                continue
            if len(zones) == 1:
                path = zones[0].path
                value = self._first[path] + self._counters[path].total
                counts.append(Count(metric, value, scope, zones[0].wraps_at))
            elif not is_new:
                # Zones wrap at different times: sum their deltas.
                total = sum(self._counters[zone.path].total for zone in zones)
                counts.append(Count(metric, total, scope))
        return counts

    def _keep(self, node: Node) -> None:
        """Have a thread follow the counters if they may wrap twice between two readings."""
        gaps = [gap for each in self._counters.values() if (gap := each.longest_gap) > 0]
        if not gaps or self.interval <= min(gaps) / 2 or self._keeper is not None:
            return
        from ccagent.machine.keeper import Keeper

        def follow() -> None:
            self._follow(node, self._energies(node))

        self._keeper = Keeper(follow, min(gaps) / 2, "energy counters")
        self._keeper.start()

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
        self._counters, self._first, self._groups = {}, {}, {}
        for zone in zones:
            self._counters[zone.path] = EnergyCounter(zone.wraps_at, MOST_WATTS[zone.metric])
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

    def _follow(self, node: Node, energies: dict[str, int]) -> None:
        """Add a reading of all zones to their counters."""
        moment, steady = node.clock.uptime(), node.clock.monotonic()
        for path, energy in energies.items():
            self._first.setdefault(path, energy)
            self._counters[path].add(EnergyReading(energy, moment, steady))

    def _take_flaws(self) -> set[str]:
        """Return the zones whose delta is unknown; the first one adds to `errors`."""
        flaws = {
            path: delta.flaw
            for path, counter in self._counters.items()
            if (delta := counter.take()) is not None and delta.flaw
        }
        if flaws:
            path, flaw = next(iter(flaws.items()))
            self.errors.append(f"/{path}: no power since the last reading: {flaw}")
        return {*flaws}


def _range(node: Node, path: str) -> int:
    try:
        return read_parsed(node, f"{path}/max_energy_range_uj", parse_energy)
    except CcagentError:
        return 0
