"""Reader of sensors of the management controller, by ipmitool or ipmi-sensors.

ipmitool sensor:     CPU1 Temp | 42.000 | degrees C | ok | 0.000 | ... (six limits)
ipmitool -c sensor:  CPU1 Temp,42.000,degrees C,ok,0.000,...
ipmitool sdr:        CPU1 Temp | 42 degrees C | ok
ipmitool sdr elist:  CPU1 Temp | 30h | ok | 3.1 | 42 degrees C
ipmitool -c sdr:     CPU1 Temp,42,degrees C,ok
ipmi-sensors:        ID | Name | Type | Reading | Units | Event
ipmimonitoring:      ID | Name | Type | State | Reading | Units | Event
The last two have commas with --comma-separated-output.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.agents.metrics.readers.program_reader import ProgramReader, ProgramReaderSettings
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.sensors import clean_label

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.program_reader import RunProgram
    from ccagent.machine.node import Node


_LONGEST_NAME = 64
_MOST = 2000
_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_VALUE = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{1,12})?) (\S.*)", re.ASCII)
_NUMBER_OF_SENSOR = re.compile(r"[0-9A-F]{2}h", re.ASCII)
_LIMITS = 6
_FREEIPMI_HEADER = re.compile(
    r"^ID *([,|]) *Name *\1 *Type *\1 *(State *\1)? *Reading *\1 *Units *\1 *Event", re.MULTILINE
)
_KINDS = {
    "degrees c": "temp", "c": "temp",
    "degrees f": "fahrenheit", "f": "fahrenheit",
    "rpm": "fan",
    "volts": "voltage", "v": "voltage",
    "amps": "current", "a": "current",
    "watts": "power", "w": "power",
    "percent": "share", "%": "share",
}  # fmt: skip


class IpmiSensor(NamedTuple):
    """A sensor with a number: kind `temp`, `fan`, `voltage`, `current`, `power` or `share`.

    value: degC, rpm, V, A, W or %.
    """

    name: str
    kind: str
    value: float


def parse_ipmi_sensors(content: bytes) -> list[IpmiSensor]:
    """Parse sensors that have a number with a known unit, in the order of the output.

    Sensors with equal names get numbers: `Temp`, `Temp#2`. Raise UnparsableError if no line is a
    sensor.
    """
    text = content.decode("utf-8", "replace")
    header = _FREEIPMI_HEADER.search(text)
    # Columns between name and reading.
    between = 0 if header is None else 2 if header[2] else 1
    sensors: list[IpmiSensor] = []
    known: dict[str, int] = {}
    is_any = False
    # The last line of an interrupted program is incomplete.
    for line in text.split("\n")[:-1]:
        fields = _fields_after_id(line, between) if between else _fields(line)
        if fields is None:
            continue
        is_any = True
        name, number, unit = fields
        kind = _KINDS.get(unit.lower())
        label = clean_label(name, _LONGEST_NAME)
        if kind is None or not label or _NUMBER.fullmatch(number) is None:
            continue
        value = float(number)
        if kind == "fahrenheit":
            kind, value = "temp", (value - 32) / 1.8
        known[label] = count = known.get(label, 0) + 1
        sensors.append(IpmiSensor(f"{label}#{count}" if count > 1 else label, kind, value))
        if len(sensors) == _MOST:
            break
    if not is_any:
        raise UnparsableError(f"no sensor: {text[:80]!r}")
    return sensors


def _fields(line: str) -> tuple[str, str, str] | None:
    """Return name, number and unit of a line of ipmitool; None for other lines."""
    if "|" in line:
        columns = [column.strip() for column in line.split("|")]
        is_extended = len(columns) == 5 and _NUMBER_OF_SENSOR.fullmatch(columns[1])
        if len(columns) == 3 or is_extended:
            # A state may follow: `110 Watts, Presence detected`.
            reading = columns[4 if is_extended else 1].partition(",")[0]
            found = _VALUE.fullmatch(reading)
            return (columns[0], found[1], found[2]) if found else (columns[0], "", "")
        return (columns[0], columns[1], columns[2]) if len(columns) > 3 else None
    columns = line.split(",")
    if len(columns) < 4:
        return None
    last = len(columns) - (_LIMITS if len(columns) >= 4 + _LIMITS else 0)
    return ",".join(columns[: last - 3]), columns[last - 3], columns[last - 2]


def _fields_after_id(line: str, between: int) -> tuple[str, str, str] | None:
    """Return name, number and unit of a line of FreeIPMI; None for other lines.

    between: columns between name and reading.
    """
    columns = line.split(",")
    if "|" in line:
        columns = [column.strip() for column in line.split("|")]
    if len(columns) < 5 + between or not columns[0].strip().isdecimal():
        return None
    # The event is the only quoted field: 'OK', or several events in one field.
    event = next((i for i, each in enumerate(columns) if each.startswith("'")), len(columns) - 1)
    if event < 4 + between:
        return None
    return ",".join(columns[1 : event - 2 - between]), columns[event - 2], columns[event - 1]


_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
_COMMANDS = (
    ("ipmitool", "-c", "sdr", "list", "full"),
    ("ipmi-sensors", "--comma-separated-output", "--quiet-cache", "--sdr-cache-recreate"),
)


class IpmiSettings(ProgramReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.ipmi]."""

    command: Annotated[
        tuple[str, ...],
        Meta(
            description="program and arguments that print sensors in the format of ipmitool or"
            " ipmi-sensors; empty: the installed one"
        ),
    ] = ()

    def __post_init__(self) -> None:
        self.check_command(self.command)


def _metric(unit: str, description: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}, by sensor (stype sensor)",
        source="ipmitool -c sdr list full, or ipmi-sensors --comma-separated-output",
        aggregation="max",
        is_default=False,
    )


class IpmiReader(ProgramReader[IpmiSettings]):
    """Sensors of the BMC. The program takes seconds and runs only if a metric is wanted."""

    name = "ipmi"
    is_exposed = False
    Settings = IpmiSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "ipmi_temp": _metric("degC", "temperature"),
        "ipmi_fan": _metric("rpm", "fan speed"),
        "ipmi_voltage": _metric("V", "voltage"),
        "ipmi_current": _metric("A", "current"),
        "ipmi_power": _metric("W", "power"),
        "ipmi_share": _metric("%", "percentage, such as the duty cycle of a fan"),
    }

    def targets(self, node: Node) -> list[str]:
        """Return the device of the BMC; a configured command needs no device."""
        if self.settings.command:
            return []
        for device in _DEVICES:
            directory, _, name = device.rpartition("/")
            try:
                if name in node.list(directory):
                    return [device]
            except NotHereError:
                continue
        raise NotHereError(f"/{_DEVICES[0]}: no BMC; load ipmi_si and ipmi_devintf if there is one")

    def collect(
        self,
        run: RunProgram,
        targets: list[str],  # noqa: ARG002 - only one target
    ) -> tuple[list[Gauge | Count], list[str]]:
        """Run the program and parse its output."""
        output = self._run(run)
        try:
            sensors = parse_ipmi_sensors(output)
        except UnparsableError as error:
            raise ProgramError(f"{self._program()}: {error}") from error
        return [
            Gauge(f"ipmi_{kind}", value, Scope(stype="sensor", stype_id=name))
            for name, kind, value in sensors
        ], []

    def _run(self, run: RunProgram) -> bytes:
        if self.settings.command:
            try:
                return run(self.settings.command)
            except NotHereError as error:
                raise ProgramError(f"{error}; see agents.metrics.ipmi.command") from error
        for command in _COMMANDS:
            try:
                return run(command)
            except NotHereError:
                continue
        raise ProgramError(
            "neither ipmitool nor ipmi-sensors is installed: install one of them,"
            " or set agents.metrics.ipmi.command"
        )

    def _program(self) -> str:
        return self.settings.command[0] if self.settings.command else "IPMI program"
