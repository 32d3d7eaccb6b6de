"""Sensors of a chip, found by the names and contents of its files.

Source: Documentation/hwmon/sysfs-interface.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.readers.labels import clean_label
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Collection

_FILE = re.compile(r"(temp|fan|in|curr|power)([0-9]{1,6})_(input|average)", re.ASCII)
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_LONGEST_LABEL = 64
_LIMITS = {
    "min": "lower limit",
    "max": "upper limit",
    "lcrit": "critical lower limit",
    "crit": "critical upper limit",
    "emergency": "emergency limit",
    "cap": "limit enforced by the hardware",
}


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


def parse_sensor(content: bytes) -> int:
    """Parse a value, a limit or a flag: one integer. Raise UnparsableError for other content."""
    text = content.strip()
    if _NUMBER.fullmatch(text) is None:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return int(text)


def parse_label(content: bytes) -> str:
    """Parse a name or a label as a value of a tag. Raise UnparsableError if it is empty."""
    kept = clean_label(content.decode("ascii", "replace"), _LONGEST_LABEL)
    if not kept:
        raise UnparsableError("empty")
    return kept


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
