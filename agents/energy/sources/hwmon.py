"""Meters among hwmon chips: ACPI power meters, Grace's rails, and amd_energy.

Source: Documentation/hwmon/acpi_power_meter.rst of Linux. Grace's names in power1_oem_info: Module,
Grace, CPU and SysIO Power Socket N.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.energy.domains import NODE_METER, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources.base import DomainCounters, EnergySource, read_all
from ccagent.agents.energy.sources.integral import PowerIntegral
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.hwmon import parse_label
from ccagent.machine.parsed import read_parsed
from ccagent.machine.powercap import parse_energy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

HWMON = "sys/class/hwmon"
_DIRECTORY = re.compile(r"hwmon[0-9]{1,6}", re.ASCII)
_RAIL = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket ([0-9]{1,3})", re.ASCII)
_SOCKET = re.compile(r"Esocket([0-9]{1,3})", re.ASCII)
_ENERGY = re.compile(r"energy([0-9]{1,4})_input", re.ASCII)
_POLLED = 1.0
_LONGEST_GAP = 30.0
_MOST_METERS = 64
_MOST_MICROWATTS = 100_000_000_000
_MOST_WATTS = 1000.0


class MeterFile(NamedTuple):
    """A file of power in uW. rail: rail of Grace; empty for the input of the node."""

    path: str
    rail: str
    socket: int


def parse_microwatts(content: bytes) -> int:
    """Parse powerN_average or powerN_input. Raise UnparsableError for an impossible power."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20 or not 0 < int(text) <= _MOST_MICROWATTS:
        raise UnparsableError(f"not a power: {content[:80]!r}")
    return int(text)


class HwmonEnergySource(EnergySource):
    """Integrates the meters every second and reads the counters of amd_energy.

    Grace has a meter for each rail. CPU is a package; Grace minus CPU and SysIO is memory. Module
    includes the GPU; NVML counts it.
    """

    name: ClassVar[str] = "hwmon"

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._meters: dict[MeterFile, PowerIntegral] = {}
        self._counters = DomainCounters("amd_energy")
        self._carried: dict[int, int] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        from ccagent.agents.energy.checks import require_node_meter

        yield require_node_meter(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read all meters. Raise NotHereError without any."""
        self.errors = []
        names = sorted(name for name in node.list(HWMON) if _DIRECTORY.fullmatch(name))
        if names != self._names:
            self._find(node, names)
        if not self._meters and not self._counters.keys:
            raise NotHereError(f"/{HWMON}: no meter")
        self.poll(node)
        found = self._counters.take()
        rails = {meter: taken for meter, each in self._meters.items() if (taken := each.take())}
        node_meters = [each for meter, each in rails.items() if not meter.rail]
        if node_meters:
            found[NODE_METER] = node_meters[0]
        for socket in {meter.socket for meter in rails if meter.rail}:
            own = {meter.rail: each for meter, each in rails.items() if meter.socket == socket}
            found |= self._of_grace(socket, own)
        return found

    def poll(self, node: Node) -> None:
        """Add a reading of each meter, and read the counters to detect wraps."""
        moment = node.clock.uptime()
        values = read_all(
            self.errors,
            (meter.path for meter in self._meters),
            lambda path: read_parsed(node, path, parse_microwatts),
        )
        for meter, integral in self._meters.items():
            if meter.path in values:
                integral.add(values[meter.path], moment)
        if self._counters.keys:
            energies = read_all(
                self.errors, self._counters.keys, lambda path: read_parsed(node, path, parse_energy)
            )
            self._counters.add(node, energies)

    def _of_grace(
        self, socket: int, rails: dict[str, MeasuredEnergy]
    ) -> Iterator[tuple[EnergyDomain, MeasuredEnergy]]:
        cpu, io, grace = rails.get("CPU"), rails.get("SysIO"), rails.get("Grace")
        if cpu is not None:
            yield EnergyDomain("package", socket), cpu
        if io is not None:
            yield EnergyDomain("board", socket), io
        if cpu is not None and io is not None and grace is not None:
            flaw = cpu.flaw or io.flaw or grace.flaw
            rest = 0
            if not flaw:
                rest = grace.energy - cpu.energy - io.energy + self._carried.pop(socket, 0)
                if rest < 0:  # the meters are not read at one moment
                    self._carried[socket], rest = rest, 0
            yield EnergyDomain("dram", socket), grace._replace(energy=rest, flaw=flaw)

    def _find(self, node: Node, names: list[str]) -> None:
        """Find the meters after a change of chips."""
        meters: list[MeterFile] = []
        energies: list[str] = []
        self._names = names
        for name in names:
            directory = f"{HWMON}/{name}"
            try:
                chip = _read_chip(node, directory)
                if chip == "power_meter":
                    meters += _meters(node, directory)
                elif chip == "amd_energy":
                    energies += self._define_energies(node, directory)
            except NotHereError:
                continue
            except CcagentError as error:
                self.errors.append(str(error))
                self._names = []
        known = self._meters
        self._meters = {
            meter: known.get(meter) or PowerIntegral(self.name, _LONGEST_GAP)
            for meter in meters[:_MOST_METERS]
        }
        self._counters.keep_only(energies)
        self.poll_interval = _POLLED if self._meters else 0.0

    def _define_energies(self, node: Node, directory: str) -> Iterator[str]:
        for name in sorted(node.list(directory)):
            found = _ENERGY.fullmatch(name)
            if found is None:
                continue
            label = read_parsed(node, f"{directory}/energy{found[1]}_label", parse_label)
            socket = _SOCKET.fullmatch(label)
            if socket is not None:
                path = f"{directory}/{name}"
                domain = EnergyDomain("package", int(socket[1]))
                self._counters.define(path, domain, 0, _MOST_WATTS)
                yield path


def _read_chip(node: Node, directory: str) -> str:
    """Return the name of a chip. Older drivers have all files in the directory of the device."""
    try:
        return read_parsed(node, f"{directory}/name", parse_label)
    except NotHereError:
        return read_parsed(node, f"{directory}/device/name", parse_label)


def _meters(node: Node, directory: str) -> Iterator[MeterFile]:
    """Yield the meter of an ACPI chip; a chip has one."""
    files = set(node.list(directory))
    for root, there in ((directory, files), (f"{directory}/device", None)):
        try:
            have = there if there is not None else set(node.list(root))
        except NotHereError:
            continue
        power = next((name for name in ("power1_average", "power1_input") if name in have), "")
        if not power:
            continue
        if "power1_is_battery" in have and node.read(f"{root}/power1_is_battery").strip() == b"1":
            return  # it measures the output of a battery
        rail, socket = "", 0
        if "power1_oem_info" in have:
            label = read_parsed(node, f"{root}/power1_oem_info", parse_label)
            found = _RAIL.fullmatch(label)
            if found is not None:
                rail, socket = found[1], int(found[2])
        yield MeterFile(f"{root}/{power}", rail, socket)
        return
