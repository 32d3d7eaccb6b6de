"""RAPL through powercap: 32-bit counters of packages and memory in microjoules."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.domains import EnergyDomain
from ccagent.agents.energy.sources.base import DomainCounters, EnergySource, Kept, read_all
from ccagent.errors import CcagentError, NotPermittedError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.powercap import FIX, MOST_WATTS, list_packages, parse_energy, read_zones

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import DomainKind, MeasuredEnergy
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_KINDS: dict[str, DomainKind] = {"cpu_power": "package", "mem_power": "dram"}


class PowercapSource(EnergySource):
    """Packages and their memory. `psys` includes packages; `core` and `uncore` are parts of one."""

    name: ClassVar[str] = "rapl"

    def __init__(self) -> None:
        super().__init__()
        self._packages: dict[str, str] = {}
        self._counters = DomainCounters(self.name)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of RAPL."""
        from ccagent.agents.metrics.readers.power import require_rapl

        yield require_rapl(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read energy_uj of the zones. Raise NotPermittedError with the fix."""
        self.errors = []
        packages = list_packages(node)
        if packages != self._packages:
            self._find(node, packages)
        self._add(node)
        return self._counters.take()

    def poll(self, node: Node) -> None:
        """Read the counters to detect wraps."""
        self._add(node)

    def keep(self) -> Kept:
        """Return the last readings."""
        return self._counters.keep()

    def restore(self, kept: Kept) -> None:
        """Continue after the readings of an earlier process."""
        self._counters.restore(kept)

    def _find(self, node: Node, packages: dict[str, str]) -> None:
        """Find the zones to count, with their sockets."""
        zones, is_complete = read_zones(node, packages, self.errors)
        self._packages = packages if is_complete else {}
        keys: list[str] = []
        for zone in zones:
            kind = _KINDS.get(zone.metric)
            if kind is None or zone.socket is None:
                continue
            keys.append(zone.path)
            domain = EnergyDomain(kind, zone.socket)
            self._counters.define(zone.path, domain, zone.wraps_at, MOST_WATTS[zone.metric])
        self._counters.keep_only(keys)
        self.poll_interval = self._counters.longest_gap / 2

    def _add(self, node: Node) -> None:
        values = read_all(
            self.errors, self._counters.keys, lambda path: read_parsed(node, path, parse_energy)
        )
        self._counters.add(node, values)
        if values or not self._counters.keys:
            return
        try:
            node.read(self._counters.keys[0])
        except NotPermittedError as error:
            self.errors = []
            raise NotPermittedError(f"{error}: only root may read the counters; {FIX}") from error
        except CcagentError:
            return  # the error is in `errors`, or the zone was removed
