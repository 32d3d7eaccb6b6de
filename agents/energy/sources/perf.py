"""RAPL through perf's PMU `power`: 64-bit counters; the kernel handles their wraps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.domains import EnergyDomain
from ccagent.agents.energy.sources.base import DomainCounters, EnergySource, read_all
from ccagent.agents.metrics.perf.call import PerfCall, explain_error, parse_counts, read_paranoid
from ccagent.agents.metrics.perf.pmu import find_pmus
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import read_lack, read_parsed
from ccagent.machine.procfs.cpulist import parse_topology_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import DomainKind, MeasuredEnergy
    from ccagent.agents.metrics.perf.call import PerfEvent
    from ccagent.agents.metrics.perf.pmu import Pmu
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_EVENTS: dict[DomainKind, str] = {"package": "energy-pkg", "dram": "energy-ram"}
_DEVICES = "sys/bus/event_source/devices"
_CPUS = "sys/devices/system/cpu"
_SCALE = re.compile(rb"[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?")
_UNIT = 2.0**-32
_MOST_WATTS = 1000.0


def parse_scale(content: bytes) -> float:
    """Return the joules per count of energy-*.scale. Raise UnparsableError if invalid."""
    text = content.strip()
    try:
        scale = float(text) if _SCALE.fullmatch(text) else 0.0
    except ValueError:
        scale = 0.0
    if not 0 < scale < 1:
        raise UnparsableError(f"not a scale: {content[:80]!r}")
    return scale


def as_microjoules(count: int, scale: float) -> int:
    """Return a count in uJ, rounded down; exact for the kernel's unit of 2^-32 J."""
    return count * 1_000_000 >> 32 if scale == _UNIT else int(count * scale * 1e6)


class PerfEnergySource(EnergySource):
    """Packages and memory by perf events; the events stay open. call: tests replace it."""

    name: ClassVar[str] = "rapl"

    def __init__(self, call: PerfCall | None = None) -> None:
        super().__init__()
        self._is_for_live = call is None
        self._call = call or PerfCall()
        self._cpus: list[int] = []
        self._open: dict[str, tuple[int, float]] = {}
        self._counters = DomainCounters(self.name)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the PMU."""
        from ccagent.agents.energy.checks import require_power_pmu

        def read() -> None:
            source = PerfEnergySource()
            try:
                source.read(node)
            finally:
                source.close()

        yield require_power_pmu(node, read)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read the counters. Raise NotHereError without the PMU, NotPermittedError with the fix."""
        if self._is_for_live and not node.is_live:
            raise NotHereError("perf: only the machine itself has counters")
        self.errors = []
        (pmu,) = find_pmus(node, "power")
        cpus = pmu.cpus()
        if cpus != self._cpus:
            self.close()
            try:
                self._open_all(node, pmu, cpus)
            except OSError as error:
                self.close()
                raise explain_error(
                    error, read_paranoid(node), read_lack(node, "CAP_PERFMON")
                ) from error
            except CcagentError:
                self.close()
                raise
            self._cpus = cpus
        values = read_all(self.errors, self._open, self._read)
        self._counters.add(node, values)
        return self._counters.take()

    def close(self) -> None:
        """Close the counters."""
        for descriptor, _ in self._open.values():
            self._call.close(descriptor)
        self._open = {}
        self._cpus = []
        self._counters = DomainCounters(self.name)

    def _open_all(self, node: Node, pmu: Pmu, cpus: list[int]) -> None:
        """Open a counter for each package and event. Raise NotHereError without an event."""
        for kind, name in _EVENTS.items():
            try:
                event = pmu.find_event(name)
            except NotHereError:
                continue
            scale = read_parsed(node, f"{_DEVICES}/power/events/{name}.scale", parse_scale)
            for cpu in cpus:
                self._open_one(node, cpu, EnergyDomain(kind), event, scale)
        if not self._open:
            raise NotHereError(f"/{_DEVICES}/power: no energy of packages")

    def _open_one(
        self, node: Node, cpu: int, domain: EnergyDomain, event: PerfEvent, scale: float
    ) -> None:
        path = f"{_CPUS}/cpu{cpu}/topology/physical_package_id"
        socket = max(0, read_parsed(node, path, parse_topology_id))
        descriptor = self._call.open(event, cpu)
        key = f"{domain.kind} {cpu}"
        self._open[key] = descriptor, scale
        self._call.enable(descriptor)
        self._counters.define(key, EnergyDomain(domain.kind, socket), 0, _MOST_WATTS)

    def _read(self, key: str) -> int:
        descriptor, scale = self._open[key]
        try:
            counts = parse_counts(self._call.read(descriptor))
        except OSError as error:
            raise UnparsableError(f"perf: {key}: {error.strerror}") from error
        return as_microjoules(counts.values[0], scale)
