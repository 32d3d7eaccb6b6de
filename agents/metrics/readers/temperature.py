"""Reader of temperatures of processors, from /sys/class/hwmon."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import CPUS, CpuLocation, read_location
from ccagent.machine.procfs.system import parse_cpu_list
from ccagent.machine.sensors import HWMON, HwmonChip, list_chips, parse_sensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

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
