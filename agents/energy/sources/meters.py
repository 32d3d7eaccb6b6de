"""Meters of the node: hwmon chips, HPE Cray's board controller, and the BMC by DCMI.

Chips: ACPI power meters, Grace's rails, and amd_energy. Source:
Documentation/hwmon/acpi_power_meter.rst of Linux. Grace's names in power1_oem_info: Module,
Grace, CPU and SysIO Power Socket N.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.energy.accounts import NODE_METER, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources import (
    ALL_SOCKETS,
    EnergySource,
    PowerIntegral,
    as_estimates,
    read_all,
)
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError
from ccagent.machine.background import GRACE, PATIENCE, RepeatedCall
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.parsed import read_parsed
from ccagent.machine.sensors import (
    HWMON,
    HwmonChip,
    list_chips,
    list_files,
    parse_energy,
    parse_label,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

_RAIL = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket ([0-9]{1,3})", re.ASCII)
_SOCKET = re.compile(r"Esocket([0-9]{1,3})", re.ASCII)
_ENERGY = re.compile(r"energy([0-9]{1,4})_input", re.ASCII)
_POLLED = 1.0
_LONGEST_GAP = 30.0
_MOST_METERS = 64
_MOST_MICROWATTS = 100_000_000_000
_MOST_WATTS = 1000.0
PM_COUNTERS = "sys/cray/pm_counters"
_LINE = re.compile(rb"([0-9]{1,12}) J(?: [0-9]{1,20} us)?")
_NUMBER = re.compile(rb"([0-9]{1,20})(?: .*)?")
_FILE = re.compile(r"(?:(accel|cpu)([0-9]{1,3})_)?(cpu_|memory_)?energy", re.ASCII)
_ATTEMPTS = 3
_STALE = "the controller has no new scan"
_MOST_WATTS_OF = {"node": 20_000.0, "package": 2000.0, "dram": 1000.0, "card": 3000.0}
COMMANDS = (
    ("ipmi-dcmi", "--get-system-power-statistics"),
    ("ipmitool", "dcmi", "power", "reading"),
)
_POWER = re.compile(
    rb"^\s*(?:Current Power|Instantaneous power reading)\s*:\s*([0-9]{1,6})\s*[Ww]atts\s*$",
    re.MULTILINE,
)
_STATE = re.compile(
    rb"^\s*(?:Power Measurement|Power reading state is)\s*:\s*(.{1,40}?)\s*$", re.MULTILINE
)
_ACTIVE = frozenset({b"active", b"activated"})
_OUTPUT_LIMIT = 64 * 1024

_AGE = 3
"""Intervals for which the last power is valid while calls fail."""


_BMC = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
_AREA = "energy"
_IMPACT = "energy of the node beyond its packages, memory and cards"


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
        super().__init__("amd_energy")
        self._names: list[str] = []
        self._meters: dict[MeterFile, PowerIntegral] = {}
        self._carried: dict[int, int] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        yield _require_node_meter(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read all meters. Raise NotHereError without any."""
        self.errors = []
        names = sorted(node.list(HWMON))
        if names != self._names:
            self._find(node, names)
        if not self._meters and not self._counters.keys:
            raise NotHereError(f"/{HWMON}: no meter")
        self.poll(node)
        energies = as_estimates(self._counters.take())  # AMD's processors compute them by a model
        rails = {
            meter: taken for meter, integral in self._meters.items() if (taken := integral.take())
        }
        node_meters = [energy for meter, energy in rails.items() if not meter.rail]
        if node_meters:
            energies[NODE_METER] = node_meters[0]
        for socket in {meter.socket for meter in rails if meter.rail}:
            own = {meter.rail: energy for meter, energy in rails.items() if meter.socket == socket}
            energies |= self._of_grace(socket, own)
        return energies

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
        errors: list[str] = []
        for chip in list_chips(node, names, errors):
            try:
                if chip.name == "power_meter":
                    meters += _meters(node, chip)
                elif chip.name == "amd_energy":
                    energies += self._define_energies(node, chip)
            except NotHereError:
                continue
            except CcagentError as error:
                errors.append(str(error))
        self._names = [] if errors else names
        self.errors += errors
        known = self._meters
        self._meters = {
            meter: known.get(meter) or PowerIntegral(self.name, _LONGEST_GAP)
            for meter in meters[:_MOST_METERS]
        }
        self._counters.keep_only(energies)
        self.poll_interval = _POLLED if self._meters else 0.0

    def _define_energies(self, node: Node, chip: HwmonChip) -> Iterator[str]:
        directory = chip.directory
        for name in sorted(chip.files):
            match = _ENERGY.fullmatch(name)
            if match is None:
                continue
            label = read_parsed(node, f"{directory}/energy{match[1]}_label", parse_label)
            socket = _SOCKET.fullmatch(label)
            if socket is not None:
                path = f"{directory}/{name}"
                domain = EnergyDomain("package", int(socket[1]))
                self._counters.define(path, domain, 0, _MOST_WATTS)
                yield path


def _meters(node: Node, chip: HwmonChip) -> Iterator[MeterFile]:
    """Yield the meter of an ACPI chip; a chip has one."""
    for root, have in list_files(node, chip):
        power = next((name for name in ("power1_average", "power1_input") if name in have), "")
        if not power:
            continue
        if "power1_is_battery" in have and node.read(f"{root}/power1_is_battery").strip() == b"1":
            return  # it measures the output of a battery
        rail, socket = "", 0
        if "power1_oem_info" in have:
            label = read_parsed(node, f"{root}/power1_oem_info", parse_label)
            match = _RAIL.fullmatch(label)
            if match is not None:
                rail, socket = match[1], int(match[2])
        yield MeterFile(f"{root}/{power}", rail, socket)
        return


def _require_node_meter(node: Node) -> Check:
    return Check(_AREA, "meter of the node", partial(find_node_meter, node), _IMPACT)


def find_node_meter(node: Node) -> CheckResult:
    """Check for a meter at the node's input."""
    if "energy" in node.list_names(PM_COUNTERS):
        return CheckResult("good", f"/{PM_COUNTERS}")
    for chip in list_chips(node, node.list_names(HWMON), []):
        if chip.name == "power_meter":
            return CheckResult("good", f"ACPI power meter, /{HWMON}/hwmon{chip.number}")
    fix = (
        "on hardware with such a meter: modprobe acpi_power_meter; or let the BMC be asked:"
        ' meters = ["pm-counters", "hwmon", "dcmi"]'
    )
    return CheckResult("missing", "neither pm_counters nor an ACPI power meter", fix)


def parse_joules(content: bytes) -> int:
    """Return the uJ of `NUMBER J TIME us`. Raise UnparsableError if invalid."""
    match = _LINE.fullmatch(content.strip())
    if match is None:
        raise UnparsableError(f"not an energy: {content[:80]!r}")
    return int(match[1]) * 1_000_000


def parse_scan(content: bytes) -> int:
    """Return the scan number in `freshness` or `startup`. Raise UnparsableError if invalid."""
    match = _NUMBER.fullmatch(content.strip())
    if match is None:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return int(match[1])


def find_domain(name: str) -> EnergyDomain | None:
    """Return the domain of a file; None for a file of no separate domain."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    unit, number, part = match.groups()
    if unit is None:
        kinds = {None: NODE_METER, "cpu_": EnergyDomain("package", ALL_SOCKETS)}
        return kinds.get(part, EnergyDomain("dram", ALL_SOCKETS))
    if part is not None:
        return None
    return EnergyDomain("card" if unit == "accel" else "package", int(number))


class PmCountersSource(EnergySource):
    """Counters of HPE Cray's board controller, which scans at 10 Hz, of one scan each."""

    name: ClassVar[str] = "pm_counters"
    is_kept: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._freshness: int = -1
        self._startup: int = -1

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        yield _require_node_meter(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read one scan. Raise NotHereError without pm_counters."""
        self.errors = []
        names = sorted(node.list(PM_COUNTERS))
        domains = {name: domain for name in names if (domain := find_domain(name)) is not None}
        if any(name.startswith("cpu0_") for name in domains):
            domains.pop("cpu_energy", None)  # this file is the sum over the sockets
        if not domains:
            raise NotHereError(f"/{PM_COUNTERS}: no energy")
        for name, domain in domains.items():
            path = f"{PM_COUNTERS}/{name}"
            self._counters.define(path, domain, 0, _MOST_WATTS_OF[domain.kind])
        self._counters.keep_only(f"{PM_COUNTERS}/{name}" for name in domains)
        values, freshness = self._read_scan(node)
        startup = self._number(node, "startup")
        if self._startup not in {-1, startup}:
            self._counters.interrupt("the controller has reset its counters")
        if freshness == self._freshness:
            values = {}
        self._freshness, self._startup = freshness, startup
        self._counters.add(node, values, _STALE)
        return self._counters.take()

    def _read_scan(self, node: Node) -> tuple[dict[str, int], int]:
        """Return the values of one scan, and the number of the scan."""
        for _ in range(_ATTEMPTS):
            freshness = self._number(node, "freshness")
            values = read_all(
                self.errors, self._counters.keys, lambda path: read_parsed(node, path, parse_joules)
            )
            if self._number(node, "freshness") == freshness:
                return values, freshness
        raise UnparsableError(f"/{PM_COUNTERS}: a new scan during each of {_ATTEMPTS} readings")

    def _number(self, node: Node, name: str) -> int:
        return read_parsed(node, f"{PM_COUNTERS}/{name}", parse_scan)


class DcmiReading(NamedTuple):
    """Power in uW, and the time at which the program ended."""

    microwatts: int
    moment: float


def parse_dcmi(content: bytes) -> int:
    """Parse the output of either program. Return uW. Raise UnparsableError."""
    power, state = _POWER.search(content), _STATE.search(content)
    if power is None:
        raise UnparsableError(f"no power in the output: {content.strip()[:80]!r}")
    if state is not None and state[1].lower() not in _ACTIVE:
        raise UnparsableError(f"the measurement of power is {state[1].decode('ascii', 'replace')}")
    watts = int(power[1])
    if watts <= 0:
        raise UnparsableError("the power is 0 W")  # some controllers return this during their start
    return watts * 1_000_000


class DcmiSource(EnergySource):
    """Queries the BMC at its own interval in the background; power is constant in between.

    A call of ipmi-dcmi or ipmitool takes 10 ms to seconds, and some controllers sometimes fail.
    Nodes of one chassis may share the reading.
    """

    name: ClassVar[str] = "dcmi"
    is_slow: ClassVar[bool] = True

    def __init__(self, command: tuple[str, ...], every: float, time_limit: float) -> None:
        super().__init__()
        self._command = command
        self._every = every
        self._time_limit = time_limit
        self._call: RepeatedCall[DcmiReading] = RepeatedCall("", every)
        self._integral = PowerIntegral(self.name, _AGE * every + time_limit)
        self._answered = -1.0

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        yield Check(_AREA, "DCMI", partial(find_dcmi, node, self._command), _IMPACT)

    def prepare_reading(self, node: Node) -> None:
        """Start the program if it is due."""
        self.errors = []
        self._call.begin(
            node.clock.time(), lambda: self._ask(node), self.errors, is_due=self.is_patient
        )

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energy up to now, by the last power."""
        wait = self._time_limit + GRACE if self.is_patient else PATIENCE
        answer = self._call.result(wait, self.errors)
        if answer is not None:
            self._answered = answer.moment
            self._integral.add(answer.microwatts, answer.moment)
        now = node.clock.uptime()
        if self._answered >= 0 and now - self._answered <= self._integral.longest_gap:
            self._integral.add(self._integral.microwatts, now)
        taken = self._integral.take()
        return {} if taken is None else {NODE_METER: taken}

    def close(self) -> None:
        """Wait for a running program; it has a time limit."""
        self._call.is_over()

    def _ask(self, node: Node) -> DcmiReading:
        """Run the program, in a thread. Raise CcagentError."""
        for command in (self._command,) if self._command else COMMANDS:
            try:
                output = node.run(command, time_limit=self._time_limit, output_limit=_OUTPUT_LIMIT)
            except NotHereError:
                continue
            try:
                return DcmiReading(parse_dcmi(output), node.clock.uptime())
            except UnparsableError as error:
                raise ProgramError(f"{command[0]}: {error}") from error
        names = self._command[0] if self._command else "ipmi-dcmi or ipmitool"
        raise ProgramError(f"{names} is needed, and not installed: see agents.energy.dcmi-command")


def find_dcmi(node: Node, command: tuple[str, ...]) -> CheckResult:
    """Check for a BMC and a client program. command: the configured one, empty for any."""
    from shutil import which

    if not command and not any(node.exists(path) for path in _BMC):
        fix = "modprobe ipmi_si ipmi_devintf, if the node has a BMC"
        return CheckResult("missing", f"no /{_BMC[0]}", fix)
    programs = command[:1] or tuple(known[0] for known in COMMANDS)
    program = next((name for name in programs if which(name)), "")
    if not program:
        fix = "install freeipmi-tools or ipmitool, or set agents.energy.dcmi-command"
        return CheckResult("missing", "no program that reads the power from the BMC", fix)
    return CheckResult("good", program)
