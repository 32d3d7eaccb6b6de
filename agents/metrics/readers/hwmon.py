"""Readers of all hardware sensors and their limits, and of temperatures of processors.

Both read /sys/class/hwmon. Source: Documentation/hwmon/sysfs-interface.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import CPUS, CpuLocation, read_location
from ccagent.machine.parsed import parse_or, read_parsed
from ccagent.machine.procfs.system import parse_cpu_list
from ccagent.machine.sensors import HWMON, HwmonChip, list_chips, parse_label, parse_sensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ccagent.machine.node import Node

_FILE = re.compile(r"(temp|fan|in|curr|power)([0-9]{1,6})_(input|average)", re.ASCII)
_LIMITS = {
    "min": "lower limit",
    "max": "upper limit",
    "lcrit": "critical lower limit",
    "crit": "critical upper limit",
    "emergency": "emergency limit",
    "cap": "limit enforced by the hardware",
}

_COLDEST, _HOTTEST = -60, 150

_INPUT = re.compile(r"(temp[0-9]{1,6})_input", re.ASCII)
_ZONE = re.compile(r"coretemp\.([0-9]{1,6})", re.ASCII)

_INTEL = "coretemp"
# Older kernels name it "Physical id".
_PACKAGE = re.compile(r"(?:Package|Physical) id ([0-9]{1,6})", re.ASCII)
_CORE = re.compile(r"Core ([0-9]{1,6})", re.ASCII)

_AMD = ("k10temp", "zenpower")
# Tctl controls the fans. On some models it is the temperature plus an offset.
# Before family 17h the one sensor has no label.
_DIE = ("Tdie", "Tctl", "temp1")

# Ampere Altra, APM X-Gene, thermal zones of a device tree.
_ARM = (
    (re.compile(r"smpro_hwmon"), re.compile(r"temp[0-9]+ SoC")),
    (re.compile(r"apm_xgene"), re.compile(r"SoC Temperature")),
    (re.compile(r"(?:cpu|soc)[0-9]*_thermal"), re.compile(r"temp1")),
)

_KNOWN_FOR = 60.0
"""Seconds between searches for sensors."""


class SensorKind(NamedTuple):
    """A kind of sensor.

    prefix: prefix of the files. metric: metric of the value. divisor: converts numbers in the files
    to the unit. limits: possible limits. lowest, highest: plausible range; a value outside is an
    error, a limit outside is ignored.
    """

    prefix: str
    metric: str
    unit: str
    divisor: int
    description: str
    limits: tuple[str, ...]
    lowest: int = -(10**15)
    highest: int = 10**15

    def forms(self) -> list[tuple[str, str, str]]:
        """Return metric, description and file of the value, then those of the limits."""
        value = f"{self.prefix}*_input"
        if self.prefix == "power":
            value += " or _average"
        return [
            (self.metric, "", value),
            *(
                (f"{self.metric}_{limit}", f", {_LIMITS[limit]}", f"{self.prefix}*_{limit}")
                for limit in self.limits
            ),
        ]


KINDS = (
    # An NVMe drive without a limit shows 65261.85 degrees.
    SensorKind(
        "temp", "hwmon_temp", "degC", 1000, "temperature",
        ("min", "max", "lcrit", "crit", "emergency"), -273_150, 1_000_000,
    ),
    SensorKind("fan", "hwmon_fan", "rpm", 1, "fan speed", ("min", "max"), 0, 1_000_000),
    SensorKind("in", "hwmon_voltage", "V", 1000, "voltage", ("min", "max", "lcrit", "crit")),
    SensorKind("curr", "hwmon_current", "A", 1000, "current", ("min", "max", "lcrit", "crit")),
    SensorKind("power", "hwmon_power", "W", 1_000_000, "power", ("max", "crit", "cap")),
)  # fmt: skip
_BY_PREFIX = {kind.prefix: kind for kind in KINDS}


class HwmonSensor(NamedTuple):
    """A sensor.

    name: chip, prefix and number. paths: path by metric. label, fault: paths, empty without one.
    """

    name: str
    kind: SensorKind
    paths: dict[str, str]
    label: str
    fault: str


def find_sensors(chip: str, directory: str, files: Collection[str]) -> list[HwmonSensor]:
    """Return the sensors of a chip by the names of its files, by kind and number."""
    values: dict[tuple[str, int], str] = {}
    for found in map(_FILE.fullmatch, files):
        if found is None or (found[3] == "average" and found[1] != "power"):
            continue
        # The instantaneous value has priority over the average.
        key = found[1], int(found[2])
        values[key] = max(values.get(key, ""), found[0])
    order = list(_BY_PREFIX)
    sensors: list[HwmonSensor] = []
    for (prefix, number), value in sorted(
        values.items(), key=lambda each: (order.index(each[0][0]), each[0][1])
    ):
        kind, base = _BY_PREFIX[prefix], value.rpartition("_")[0]
        paths = {kind.metric: f"{directory}/{value}"}
        for limit in kind.limits:
            if f"{base}_{limit}" in files:
                paths[f"{kind.metric}_{limit}"] = f"{directory}/{base}_{limit}"
        label = f"{directory}/{base}_label" if f"{base}_label" in files else ""
        fault = f"{directory}/{base}_fault" if f"{base}_fault" in files else ""
        sensors.append(HwmonSensor(f"{chip}/{prefix}{number}", kind, paths, label, fault))
    return sensors


class HwmonReader(Reader[ReaderSettings]):
    """Temperatures, fan speeds, voltages, currents and power; read only if wanted.

    Chips behind a slow bus take milliseconds for each value.
    """

    name = "hwmon"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = {
        metric: Metric(
            unit=kind.unit,
            type="node",
            description=f"{kind.description}{what}, by sensor (stype sensor)",
            source=f"/sys/class/hwmon/hwmonN, {source}",
            aggregation="max",
            is_default=False,
        )
        for kind in KINDS
        for metric, what, source in kind.forms()
    }

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._names: list[str] = []
        self._known_until = 0.0
        self._sensors: list[HwmonSensor] = []

    def read(self, node: Node) -> Iterable[Gauge]:
        """Read the wanted values of each sensor. Raise NotHereError without sensors.

        `errors` has the first unreadable value, and the number of further ones.
        """
        self.forget_errors()
        wanted = set(self.metrics) if self.wanted is None else self.wanted & self.metrics.keys()
        if not wanted:
            return []
        errors: list[str] = []
        self._find(node, errors)
        if not self._sensors and not errors:
            raise NotHereError(f"/{HWMON}: no sensor")
        found = [
            gauge for sensor in self._sensors for gauge in _gauges(node, sensor, wanted, errors)
        ]
        if errors:
            more = f"; {len(errors) - 1} more cannot be read" if len(errors) > 1 else ""
            self.errors = [errors[0] + more]
        return found

    def _find(self, node: Node, errors: list[str]) -> None:
        """Find the sensors after a change of chips and every minute, because cores go offline."""
        now = node.clock.monotonic()
        names = sorted(node.list(HWMON))
        if names == self._names and now < self._known_until:
            return
        self._sensors = []
        chips: dict[str, int] = {}
        for chip in list_chips(node, names, errors):
            if not chip.name:
                continue
            index = chips[chip.name] = chips.get(chip.name, -1) + 1
            for sensor in find_sensors(f"{chip.name}-{index}", chip.directory, set(chip.files)):
                self._sensors.append(_add_label(node, sensor))
        self._names, self._known_until = names, now + _KNOWN_FOR


def _gauges(
    node: Node, sensor: HwmonSensor, wanted: Collection[str], errors: list[str]
) -> Iterator[Gauge]:
    """Yield the wanted values of a sensor; no value while the chip reports a fault."""
    scope = Scope(stype="sensor", stype_id=sensor.name)
    for metric, path in sensor.paths.items():
        is_value = metric == sensor.kind.metric
        if metric not in wanted:
            continue
        if is_value and sensor.fault and parse_or(node, sensor.fault, parse_sensor, 0):
            continue
        try:
            number = read_parsed(node, path, parse_sensor)
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))
            continue
        if sensor.kind.lowest <= number <= sensor.kind.highest:
            yield Gauge(metric, number / sensor.kind.divisor, scope)
        elif is_value:
            errors.append(f"/{path}: no {sensor.kind.description} that can be")


def _add_label(node: Node, sensor: HwmonSensor) -> HwmonSensor:
    label = parse_or(node, sensor.label, parse_label, None) if sensor.label else None
    return sensor if label is None else sensor._replace(name=f"{sensor.name}/{label}")


class Chip(NamedTuple):
    """A chip: name (`coretemp`), directory `hwmonN`, and label and path of each temperature.

    The label of a sensor without one is its file name, `temp1`.
    """

    kind: str
    name: str
    inputs: list[tuple[str, str]]


class ProcessorSensor(NamedTuple):
    """Path and scopes of a temperature. Without scopes it counts only for the node."""

    path: str
    metric: str
    scopes: tuple[Scope, ...]


def parse_temperature(content: bytes) -> float:
    """Parse temp*_input in millidegrees. Return degrees Celsius.

    Raise UnparsableError for an invalid or implausible value (broken sensor).
    """
    degrees = parse_sensor(content) / 1000
    if not _COLDEST <= degrees <= _HOTTEST:
        # The message has no value, so its rate limit works.
        raise UnparsableError(f"below {_COLDEST} or above {_HOTTEST} degrees")
    return degrees


def sensors_of_die(chip: Chip, zone: int | None, cpus: list[CpuLocation]) -> list[ProcessorSensor]:
    """Return the sensors of a chip `coretemp`. zone: N of device coretemp.N, None if unknown.

    N and the label of the package count dies (topology_logical_die_id()), or sockets before Linux
    5.3. Source: drivers/hwmon/coretemp.c. cpus: ascending.
    """
    if zone is None:
        packages = [found for label, _ in chip.inputs if (found := _PACKAGE.fullmatch(label))]
        zone = int(packages[0][1]) if packages else -1
    dies = list(dict.fromkeys((cpu.socket, cpu.die) for cpu in cpus))
    if len(dies) == 1:
        members = cpus
    elif 0 <= zone < len(dies):
        members = [cpu for cpu in cpus if (cpu.socket, cpu.die) == dies[zone]]
    else:
        members = [cpu for cpu in cpus if cpu.socket == zone >= 0]
    threads: dict[int, list[Scope]] = {}
    for cpu in members:
        threads.setdefault(cpu.core, []).append(Scope("hwthread", str(cpu.number)))
    socket = tuple(_socket(cpu.socket) for cpu in members[:1])
    sensors: list[ProcessorSensor] = []
    for label, path in chip.inputs:
        core = _CORE.fullmatch(label)
        if core is not None:
            sensors.append(ProcessorSensor(path, "temp_core", tuple(threads.get(int(core[1]), ()))))
        elif _PACKAGE.fullmatch(label):
            sensors.append(ProcessorSensor(path, "temp_package", socket))
    return sensors


def sensors_of_packages(chips: list[Chip], sockets: list[int]) -> list[ProcessorSensor]:
    """Return the sensors of chips of one kind, divided evenly among the sockets.

    Chips and sockets are ascending. Chips that can't be divided evenly belong to the node.
    """
    sensors: list[ProcessorSensor] = []
    for index, chip in enumerate(chips):
        scopes: tuple[Scope, ...] = ()
        if sockets and not len(chips) % len(sockets):
            scopes = (_socket(sockets[index * len(sockets) // len(chips)]),)
        sensors += (ProcessorSensor(path, "temp_package", scopes) for path in _whole(chip))
    return sensors


class TemperatureReader(Reader[ReaderSettings]):
    """Temperatures of cores and packages; the node has the highest of each."""

    name = "temperature"
    metrics: ClassVar[dict[str, Metric]] = {
        "temp_core": Metric(
            unit="degC",
            type="hwthread",
            description="temperature of a core, sent for each of its hwthreads",
            source="/sys/class/hwmon, coretemp, Core N: temp*_input",
            aggregation="max",
        ),
        "temp_package": Metric(
            unit="degC",
            type="socket",
            description="temperature of a processor",
            source="/sys/class/hwmon, coretemp, k10temp, zenpower, Arm SoC: temp*_input",
            aggregation="max",
        ),
    }

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._state: object = None
        self._sensors: list[ProcessorSensor] = []

    def read(self, node: Node) -> Iterable[Gauge]:
        """Read each sensor. Raise NotHereError if the processor has none."""
        self.forget_errors()
        # The sensors of a core exist while it is online.
        state = (sorted(node.list(HWMON)), _text(node, f"{CPUS}/online"))
        if state != self._state:
            self._sensors = self._find(node, *state)
            self._state = None if self.errors else state
        if not self._sensors and not self.errors:
            raise NotHereError(f"/{HWMON}: no sensor of a processor")
        highest: dict[tuple[str, Scope], float] = {}
        for path, metric, scopes in self._sensors:
            degrees = self.try_parsed(node, path, parse_temperature)
            if degrees is None:
                continue
            for scope in (*scopes, NODE):
                if degrees > highest.get((metric, scope), -1000):
                    highest[metric, scope] = degrees
        return [Gauge(metric, degrees, scope) for (metric, scope), degrees in highest.items()]

    def _find(self, node: Node, names: list[str], online: str) -> list[ProcessorSensor]:
        """Find the sensors of processors among `names`, the directories in /sys/class/hwmon."""
        kinds: dict[str, list[Chip]] = {}
        for found in list_chips(node, names, self.errors):
            chip = self._chip(node, found)
            if chip is not None:
                kinds.setdefault(chip.kind, []).append(chip)
        if not kinds:
            return []
        cpus = self._cpus(node, online)
        sockets = sorted({cpu.socket for cpu in cpus})
        sensors: list[ProcessorSensor] = []
        for kind, chips in kinds.items():
            if kind == _INTEL:
                zones = _coretemp_zones(node)
                for chip in chips:
                    sensors += sensors_of_die(chip, zones.get(chip.name), cpus)
            else:
                order = _pci_order(node, kind)
                chips.sort(key=lambda chip: order.get(chip.name, -1))
                sensors += sensors_of_packages(chips, sockets)
        return sensors

    def _chip(self, node: Node, found: HwmonChip) -> Chip | None:
        """Return a chip; None for a chip of other hardware."""
        if found.name not in {_INTEL, *_AMD} and _arm_label(found.name) is None:
            return None
        try:
            inputs = [
                (_text(node, f"{found.directory}/{input_[1]}_label") or input_[1], input_[0])
                for file in sorted(found.files)
                if (input_ := _INPUT.fullmatch(file))
            ]
        except CcagentError as error:
            self.errors.append(str(error))
            return None
        paths = [(label, f"{found.directory}/{file}") for label, file in inputs]
        return Chip(found.name, f"hwmon{found.number}", paths)

    def _cpus(self, node: Node, online: str) -> list[CpuLocation]:
        """Return the locations of online hwthreads, ascending. Unreadable ones are skipped."""
        cpus: list[CpuLocation] = []
        errors: list[str] = []
        for number in parse_cpu_list(online.encode()):
            try:
                cpus.append(read_location(node, number))
            except CcagentError as error:
                errors.append(str(error))
        self.errors += errors[:1]
        return cpus


def _socket(number: int) -> Scope:
    # -1: the kernel has no socket numbers.
    return Scope("socket", str(max(0, number)))


def _whole(chip: Chip) -> list[str]:
    """Return the paths of a chip's temperatures for the whole processor."""
    label = _arm_label(chip.kind)
    if label is not None:
        return [path for text, path in chip.inputs if label.fullmatch(text)]
    paths = dict(chip.inputs)
    return [paths[text] for text in _DIE if text in paths][:1]


def _arm_label(kind: str) -> re.Pattern[str] | None:
    return next((label for name, label in _ARM if name.fullmatch(kind)), None)


def _text(node: Node, path: str) -> str:
    """Return the text of a one-line file; empty if the file is missing."""
    try:
        return node.read_single(path).decode("ascii", "replace").strip()
    except NotHereError:
        return ""


def _coretemp_zones(node: Node) -> dict[str, int]:
    """Return N of the devices coretemp.N by directory `hwmonM`."""
    root = "sys/devices/platform"
    return {
        name: int(found[1])
        for device in node.list_names(root)
        if (found := _ZONE.fullmatch(device))
        for name in node.list_names(f"{root}/{device}/hwmon")
    }


def _pci_order(node: Node, driver: str) -> dict[str, int]:
    """Return the directories `hwmonM` of a driver in the order of PCI addresses.

    PCI addresses of processor devices ascend with the sockets: 00:18.3, 00:19.3...
    """
    root = f"sys/bus/pci/drivers/{driver}"
    devices = sorted(name for name in node.list_names(root) if ":" in name)
    return {
        name: index
        for index, device in enumerate(devices)
        for name in node.list_names(f"{root}/{device}/hwmon")
    }
