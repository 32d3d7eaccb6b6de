"""Reader of all hardware sensors and their limits, from /sys/class/hwmon.

Source: Documentation/hwmon/sysfs-interface.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.parsed import parse_or, read_parsed
from ccagent.machine.sensors import HWMON, list_chips, parse_label, parse_sensor

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


_KNOWN_FOR = 60.0
"""Seconds between searches for sensors."""


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
