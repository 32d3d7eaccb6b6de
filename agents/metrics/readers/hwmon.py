"""Reader of all hardware sensors and their limits, from /sys/class/hwmon."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.agents.metrics.readers.hwmon_sensors import (
    KINDS,
    HwmonSensor,
    find_sensors,
    parse_label,
    parse_sensor,
)
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ccagent.machine.node import Node

_HWMON = "sys/class/hwmon"
_DIRECTORY = re.compile(r"hwmon([0-9]{1,6})", re.ASCII)
_KNOWN_FOR = 60.0
"""Seconds between searches for sensors."""


class HwmonReader(Reader[ReaderSettings]):
    """Temperatures, fan speeds, voltages, currents and power; read only if wanted.

    Chips behind a slow bus take milliseconds for each value.
    """

    name = "hwmon"
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
        self.errors = []
        wanted = set(self.metrics) if self.wanted is None else self.wanted & self.metrics.keys()
        if not wanted:
            return []
        errors: list[str] = []
        self._find(node, errors)
        if not self._sensors and not errors:
            raise NotHereError(f"/{_HWMON}: no sensor")
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
        names = sorted(node.list(_HWMON))
        if names == self._names and now < self._known_until:
            return
        self._sensors = []
        chips: dict[str, int] = {}
        for number in sorted(int(found[1]) for found in map(_DIRECTORY.fullmatch, names) if found):
            try:
                chip, directory = _chip(node, f"{_HWMON}/hwmon{number}")
                index = chips[chip] = chips.get(chip, -1) + 1
                files = set(node.list(directory))
            except NotHereError:
                continue
            except CcagentError as error:
                errors.append(str(error))
                continue
            for sensor in find_sensors(f"{chip}-{index}", directory, files):
                self._sensors.append(_add_label(node, sensor))
        self._names, self._known_until = names, now + _KNOWN_FOR


def _gauges(
    node: Node, sensor: HwmonSensor, wanted: Collection[str], errors: list[str]
) -> Iterator[Gauge]:
    """Yield the wanted values of a sensor; no value while the chip reports a fault."""
    scope = Scope(stype="sensor", stype_id=sensor.name)
    for metric, path in sensor.paths.items():
        is_value = metric == sensor.kind.metric
        if metric not in wanted or (is_value and _is_faulty(node, sensor)):
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


def _is_faulty(node: Node, sensor: HwmonSensor) -> bool:
    try:
        return bool(sensor.fault) and read_parsed(node, sensor.fault, parse_sensor) != 0
    except CcagentError:
        return False


def _chip(node: Node, directory: str) -> tuple[str, str]:
    """Return the name of a chip and the directory of its files."""
    try:
        return read_parsed(node, f"{directory}/name", parse_label), directory
    except NotHereError:
        # Before Linux 3.15 the files were in the directory of the device.
        return read_parsed(node, f"{directory}/device/name", parse_label), f"{directory}/device"


def _add_label(node: Node, sensor: HwmonSensor) -> HwmonSensor:
    if not sensor.label:
        return sensor
    try:
        label = read_parsed(node, sensor.label, parse_label)
    except CcagentError:
        return sensor
    return sensor._replace(name=f"{sensor.name}/{label}")
