"""RAPL through perf if permitted, else through powercap."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.accounts import DomainKind, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources import (
    DomainCounters,
    EnergySource,
    Kept,
    as_estimates,
    read_all,
)
from ccagent.agents.metrics.perf.call import (
    DEVICES,
    PARANOID,
    PerfCall,
    Pmu,
    explain_error,
    find_pmus,
    parse_counts,
)
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.cpus import read_socket
from ccagent.machine.parsed import read_lack, read_parsed
from ccagent.machine.procfs.system import parse_cpuinfo
from ccagent.machine.sensors import FIX, MOST_WATTS, list_packages, parse_energy, read_zones

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy import RaplAccess
    from ccagent.agents.metrics.perf.call import PerfEvent
    from ccagent.machine.node import Node

_EVENTS: dict[DomainKind, str] = {"package": "energy-pkg", "dram": "energy-ram"}
_SCALE = re.compile(rb"[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?")
_UNIT = 2.0**-32
_MOST_WATTS = 1000.0
_KINDS: dict[str, DomainKind] = {"cpu_power": "package", "mem_power": "dram"}
_WITH_MODEL = frozenset({"AuthenticAMD", "HygonGenuine"})


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
    """Packages and memory by perf's PMU `power`; the events stay open. call: tests replace it.

    The counters have 64 bits; the kernel handles their wraps.
    """

    name: ClassVar[str] = "rapl"

    def __init__(self, call: PerfCall | None = None) -> None:
        super().__init__()
        self._is_for_live = call is None
        self._call = call or PerfCall()
        self._cpus: list[int] = []
        self._open: dict[str, tuple[int, float]] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the PMU."""
        impact = "energy of packages and memory, if powercap is unreadable, too"
        yield Check("energy", "RAPL by perf", partial(find_power_pmu, node), impact)

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
                    error, node.read_text(PARANOID), read_lack(node, "CAP_PERFMON")
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
            scale = read_parsed(node, f"{DEVICES}/power/events/{name}.scale", parse_scale)
            for cpu in cpus:
                self._open_one(node, cpu, EnergyDomain(kind), event, scale)
        if not self._open:
            raise NotHereError(f"/{DEVICES}/power: no energy of packages")

    def _open_one(
        self, node: Node, cpu: int, domain: EnergyDomain, event: PerfEvent, scale: float
    ) -> None:
        socket = read_socket(node, cpu)
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


def find_power_pmu(node: Node) -> CheckResult:
    """Check that the PMU `power` exists and this user may use it."""
    events = [name for name in node.list_names(f"{DEVICES}/power/events") if "." not in name]
    if not events:
        fix = "on hardware: modprobe rapl (intel_rapl_perf before Linux 5.8); virtual machines"
        return CheckResult("missing", f"no /{DEVICES}/power", f"{fix} have none")
    if node.is_live:
        source = PerfEnergySource()
        try:
            source.read(node)
        except CcagentError as error:
            fix = (
                "give its service CapabilityBoundingSet= and AmbientCapabilities=CAP_PERFMON, or"
                " let powercap be read"
            )
            return CheckResult("problem", str(error), fix)
        finally:
            source.close()
    return CheckResult("good", ", ".join(events))


class PowercapSource(EnergySource):
    """Packages and their memory. `psys` includes packages; `core` and `uncore` are parts of one."""

    name: ClassVar[str] = "rapl"
    is_kept: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._packages: dict[str, str] = {}

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


class RaplSource(EnergySource):
    """Reads RAPL through perf or powercap. access: `auto`, or the only one to try."""

    name: ClassVar[str] = "rapl"

    def __init__(self, access: RaplAccess, perf: PerfEnergySource | None = None) -> None:
        super().__init__()
        self._access = access
        self._perf = perf or PerfEnergySource()
        self._powercap = PowercapSource()
        self._is_model: bool | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of both accesses."""
        if self._access in {"auto", "powercap"}:
            yield from self._powercap.checks(node)
        if self._access in {"auto", "perf"}:
            yield from self._perf.checks(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read the counters of perf, else of powercap. Raise CcagentError if both fail."""
        energies = self._read_permitted(node)
        if self._is_model is None:
            self._is_model = has_power_model(node)
        return as_estimates(energies) if self._is_model else energies

    def _read_permitted(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        self.errors = []
        refused: CcagentError | None = None
        if self._access in {"auto", "perf"}:
            try:
                energies = self._perf.read(node)
            except CcagentError as error:
                if self._access == "perf":
                    raise
                refused = error
            else:
                self.errors = self._perf.errors
                if energies or self._access == "perf":
                    self._powercap = PowercapSource()  # its counters are not polled any more
                    self.poll_interval = 0.0
                    return energies
        try:
            energies = self._powercap.read(node)
        except NotHereError as error:
            if refused is not None and not isinstance(refused, NotHereError):
                raise refused from error
            raise
        except NotPermittedError as error:
            if refused is None or isinstance(refused, NotHereError):
                raise
            raise NotPermittedError(f"{error}; or {refused}") from error
        self.errors = [*self.errors, *self._powercap.errors]
        self.poll_interval = self._powercap.poll_interval
        return energies

    def poll(self, node: Node) -> None:
        """Read the counters of powercap to detect wraps."""
        self._powercap.poll(node)

    def keep(self) -> Kept:
        """Return the last readings of powercap. Counters of perf end with the process."""
        return self._powercap.keep() if self.poll_interval else {}

    def restore(self, kept: Kept) -> None:
        """Continue after the readings of an earlier process."""
        self._powercap.restore(kept)

    def close(self) -> None:
        """Close the counters of perf."""
        self._perf.close()


def has_power_model(node: Node) -> bool:
    """Return whether the processor computes its energy by a model (AMD)."""
    try:
        blocks = parse_cpuinfo(node.read("proc/cpuinfo"))
    except CcagentError:
        return False
    return any(block.get("vendor_id") in _WITH_MODEL for block in blocks[:1])
