"""Reader of power of sockets and memory, from the energy counters of RAPL, and their check."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import NODE, Count, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.parsed import read_parsed
from ccagent.machine.sensors import (
    FIX,
    MOST_WATTS,
    POWERCAP,
    ZONE,
    EnergyCounter,
    EnergyReading,
    list_packages,
    parse_energy,
    read_zones,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.background import Poller
    from ccagent.machine.node import Node
    from ccagent.machine.sensors import RaplZone


_REFUSED = "only root may read the energy counters"


class PowerReader(Reader[ReaderSettings]):
    """Power of packages, memory, cores, graphics and the platform: of sockets, and of the node.

    The node value is the sum over sockets. The dies of a package form one socket.
    """

    name = "power"
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_power": Metric("W", "socket", "power of the whole CPU package",
            "/sys/class/powercap/*-rapl:*, package-*: energy_uj", scale=1e-6),
        "mem_power": Metric("W", "socket", "power of the memory of a socket; not part of cpu_power",
            "/sys/class/powercap/*-rapl:*, dram: energy_uj", scale=1e-6),
        "core_power": Metric("W", "socket",
            "power of the cores of a package (AMD: of its first core only); part of cpu_power",
            "/sys/class/powercap/*-rapl:*, core: energy_uj", scale=1e-6, is_default=False),
        "uncore_power": Metric("W", "socket",
            "power of the graphics unit in a package; part of cpu_power",
            "/sys/class/powercap/*-rapl:*, uncore: energy_uj", scale=1e-6, is_default=False),
        "psys_power": Metric("W", "node", "power of the platform, if the vendor provides it",
            "/sys/class/powercap/*-rapl:*, psys: energy_uj", scale=1e-6, is_default=False),
    }  # fmt: skip

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._packages: dict[str, str] = {}
        self._zones: list[RaplZone] = []
        self._groups: dict[tuple[str, Scope], list[RaplZone]] = {}
        self._counters: dict[str, EnergyCounter] = {}
        self._first: dict[str, int] = {}
        self._poller: Poller | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of RAPL."""
        yield require_rapl(node)

    def read(self, node: Node) -> Iterable[Count]:
        """Read each zone's energy_uj. Raise NotHereError without zones.

        Raise NotPermittedError with the fix if this user can read no zone.
        """
        self.forget_errors()
        packages = list_packages(node)
        poller = self._poller
        if poller is not None:
            with poller.lock:
                counts = self._read_counts(node, packages)
            poller.note()
        else:
            counts = self._read_counts(node, packages)
        self._keep(node)
        return counts

    def close(self) -> None:
        """Stop the thread that reads the counters between samples."""
        if self._poller is not None:
            self._poller.close()

    def _read_counts(self, node: Node, packages: dict[str, str]) -> list[Count]:
        """Return the unwrapped counters; none for zones with an unknown delta."""
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
                # Zones wrap at different times, so sum their deltas.
                total = sum(self._counters[zone.path].total for zone in zones)
                counts.append(Count(metric, total, scope))
        return counts

    def _keep(self, node: Node) -> None:
        """Start a thread that reads the counters if they may wrap twice between two readings."""
        gaps = [gap for each in self._counters.values() if (gap := each.longest_gap) > 0]
        if not gaps or self.interval <= min(gaps) / 2 or self._poller is not None:
            return
        from ccagent.machine.background import Poller

        def follow() -> None:
            self._follow(node, self._energies(node))

        self._poller = Poller(follow, min(gaps) / 2, "energy counters")
        self._poller.start()

    def _find(self, node: Node, packages: dict[str, str]) -> bool:
        """Find the zones and their packages. Return whether they have changed."""
        zones, is_complete = read_zones(node, packages, self.errors)
        self._packages = packages if is_complete else {}
        if zones == self._zones:
            return False
        had_others = bool(self._zones)
        self._zones = zones
        self._counters, self._first, self._groups = {}, {}, {}
        for zone in zones:
            self._counters[zone.path] = EnergyCounter(zone.wraps_at, MOST_WATTS[zone.metric])
            if zone.socket is not None:
                scope = Scope("socket", str(zone.socket))
                self._groups.setdefault((zone.metric, scope), []).append(zone)
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
        """Return the zones with an unknown delta; add the first one to `errors`."""
        flaws = {
            path: delta.flaw
            for path, counter in self._counters.items()
            if (delta := counter.take()) is not None and delta.flaw
        }
        if flaws:
            path, flaw = next(iter(flaws.items()))
            self.errors.append(f"/{path}: no power since the last reading: {flaw}")
        return {*flaws}


def require_rapl(node: Node) -> Check:
    """Return the check of RAPL."""
    return Check("power", "RAPL", partial(find_zones, node))


def find_zones(node: Node) -> CheckResult:
    """Return the result with the number of zones that this user can read."""
    names = [name for name in node.list_names(POWERCAP) if ZONE.fullmatch(name)]
    if not names:
        fix = "on hardware: modprobe intel_rapl_msr; virtual machines have none"
        return CheckResult("missing", f"no zones in /{POWERCAP}", fix)
    refused = [name for name in names if not node.is_readable(f"{POWERCAP}/{name}/energy_uj")]
    if refused:
        found = f"this user may not read energy_uj of {len(refused)} of {len(names)} zones"
        return CheckResult("problem", found, FIX)
    return CheckResult("good", f"{len(names)} zones can be read")
