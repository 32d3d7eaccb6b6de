"""Parser for the output of ipmitool and of FreeIPMI's ipmi-sensors.

ipmitool sensor:     CPU1 Temp | 42.000 | degrees C | ok | 0.000 | ...
ipmitool sdr:        CPU1 Temp | 42 degrees C | ok
ipmitool -c sdr:     CPU1 Temp,42,degrees C,ok
ipmi-sensors --comma-separated-output:  ID,Name,Type,Reading,Units,Event
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.agents.metrics.readers.labels import clean_label
from ccagent.errors import UnparsableError

_LONGEST_NAME = 64
_MOST = 2000
_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_VALUE = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{1,12})?) (\S.*)", re.ASCII)
_FREEIPMI_HEADER = "ID,Name,Type,Reading,Units,Event"
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
    has_ids = _FREEIPMI_HEADER in text
    sensors: list[IpmiSensor] = []
    known: dict[str, int] = {}
    is_any = False
    # The last line of an interrupted program is incomplete.
    for line in text.split("\n")[:-1]:
        fields = _fields(line, has_ids=has_ids)
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


def _fields(line: str, *, has_ids: bool) -> tuple[str, str, str] | None:
    """Return name, number and unit of a line; None for other lines."""
    if "|" in line:
        columns = [column.strip() for column in line.split("|")]
        if len(columns) >= 4:
            return columns[0], columns[1], columns[2]
        if len(columns) == 3:
            found = _VALUE.fullmatch(columns[1])
            return (columns[0], found[1], found[2]) if found else (columns[0], "", "")
        return None
    columns = line.split(",")
    if has_ids:
        # The event is the only quoted field: 'OK', or several events in one field.
        if len(columns) < 6 or not columns[0].strip().isdecimal():
            return None
        event = next(
            (i for i, each in enumerate(columns) if each.startswith("'")), len(columns) - 1
        )
        if event < 5:
            return None
        return ",".join(columns[1 : event - 3]), columns[event - 2], columns[event - 1]
    if len(columns) < 4:
        return None
    return ",".join(columns[:-3]), columns[-3], columns[-2]
