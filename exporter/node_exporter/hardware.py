"""Hardware collectors: hwmon, edac, thermal_zone, powersupplyclass, rapl."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotHereError, NotPermittedError
from ccagent.exporter.collector import Collector, list_names, read_number, read_text
from ccagent.exporter.exposition import Family, counter, gauge
from ccagent.machine.sensors import FIX, HWMON, POWERCAP, ZONE, list_chips, list_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node
    from ccagent.machine.sensors import HwmonChip

_SENSOR = re.compile(
    r"(vrm|beep_enable|update_interval|in|cpu|fan|pwm|temp|curr|power|energy|humidity|intrusion"
    r"|freq)([0-9]*)(?:_([a-z_0-9]+))?",
    re.ASCII,
)
_UNCLEAN = re.compile(r"[^a-z0-9:_]")
_CHIP = gauge(
    "node_hwmon_chip_names", "Annotation metric for human-readable chip names",
    "chip", "chip_name",
)  # fmt: skip
_LABEL = gauge("node_hwmon_sensor_label", "Label for given chip and sensor", "label", "chip",
               "sensor")  # fmt: skip
_KNOWN_FOR = 60.0


def clean_name(name: str) -> str:
    """Return a name as node_exporter writes it in labels and metric names."""
    return _UNCLEAN.sub("_", name.lower()).strip("_")


_SPECIAL = {
    "beep_enable": ("beep_enabled", 1, "Hardware beep enabled"),
    "vrm": ("voltage_regulator_version", 1, "Hardware voltage regulator"),
    "update_interval": ("update_interval_seconds", 1e-3, "Hardware monitor update interval"),
}
"""Files that are not sensors: name, factor and help."""
_INTERVALS = frozenset({"average_interval", "average_interval_min", "average_interval_max"})
_SPEEDS = frozenset({"input", "min", "max", "target"})
_UNITS: dict[str, tuple[str, float, str]] = {
    "in": ("_volts", 1e-3, "voltage"),
    "cpu": ("_volts", 1e-3, "voltage"),
    "temp": ("_celsius", 1e-3, "temperature"),
    "curr": ("_amps", 1e-3, "current"),
    "energy": ("_joule_total", 1e-6, "joules used so far"),
    "power": ("_watt", 1e-6, "power usage in watts"),
    "humidity": (
        "", 1e-6,
        "humidity, as a ratio (multiply with 100.0 to get the humidity as a percentage)",
    ),
    "fan": ("_rpm", 1, "fan revolutions per minute"),
}  # fmt: skip
"""Suffix, factor and help, by sensor type."""


def name_sensor(kind: str, element: str) -> tuple[str, float, str]:
    """Return metric name, factor and help of a sensor file, such as `temp` and `crit`."""
    if kind in _SPECIAL:
        name, factor, text = _SPECIAL[kind]
        return f"node_hwmon_{name}", factor, text
    if (kind, element) == ("freq", "input"):
        return "node_hwmon_freq_freq_mhz", 1e-6, "Hardware monitor for GPU frequency in MHz"
    shown = element or "input"
    name = f"node_hwmon_{kind}" + ("" if shown == "input" else f"_{clean_name(element)}")
    if element in {"fault", "alarm"}:
        return name, 1, f"Hardware sensor {element} status ({kind})"
    if element == "beep":
        return f"{name}_enabled", 1, "Hardware monitor sensor has beeping enabled"
    if kind == "power" and element == "accuracy":
        return name, 1e-6, "Hardware monitor power meter accuracy, as a ratio"
    if kind == "power" and element in _INTERVALS:
        return f"{name}_seconds", 1e-3, f"Hardware monitor power usage update interval ({shown})"
    is_plain = (kind == "temp" and element == "type") or (kind == "fan" and shown not in _SPEEDS)
    if kind not in _UNITS or is_plain:
        return name, 1, f"Hardware monitor {kind} element {element}"
    suffix, factor, what = _UNITS[kind]
    return name + suffix, factor, f"Hardware monitor for {what} ({shown})"


class _Value(NamedTuple):
    """A sensor file, with family, labels and factor of its value."""

    path: str
    family: Family
    labels: Labels
    factor: float


class HwmonCollector(Collector):
    """All hwmon sensors. New sensors are found within a minute."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families: dict[str, Family] = {}
        self._values: list[_Value] = []
        self._chips: list[tuple[Labels, float]] = []
        self._sensor_labels: list[tuple[Labels, float]] = []
        self._known_until = 0.0

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /sys/class/hwmon."""
        now = node.clock.monotonic()
        if now >= self._known_until:
            self._find(node)
            self._known_until = now + _KNOWN_FOR
        rows: dict[Family, list[tuple[Labels, float]]] = {}
        for each in self._values:
            value = read_number(node, each.path)
            if value is not None:
                number = value if each.factor == 1 else value / round(1 / each.factor)
                rows.setdefault(each.family, []).append((each.labels, number))
        yield _CHIP, self._chips
        yield _LABEL, self._sensor_labels
        yield from rows.items()

    def _find(self, node: Node) -> None:
        self._values, self._chips, self._sensor_labels = [], [], []
        # By name, as node_exporter does: hwmon10 comes before hwmon2.
        chips = sorted(list_chips(node, node.list(HWMON), []), key=lambda c: str(c.number))
        for each, chip, title in _name_chips(node, chips):
            if title:
                self._chips.append(((chip, title), 1))
            for directory, files in list_files(node, each):
                for file in sorted(files):
                    found = _SENSOR.fullmatch(file)
                    if found is not None:
                        self._add(node, f"{directory}/{file}", chip, found)

    def _add(self, node: Node, path: str, chip: str, found: re.Match[str]) -> None:
        kind, number, element = found[1], found[2], found[3] or ""
        sensor = kind + (number or "0")
        if element == "label":
            label = read_text(node, path).strip()
            if label:
                self._sensor_labels.append(((label, chip, sensor), 1))
            return
        if (kind, element) == ("freq", "input"):
            sensor = clean_name(read_text(node, path.removesuffix("input") + "label"))
            if not sensor:
                return
        name, factor, text = name_sensor(kind, element)
        family = self._families.get(name)
        if family is None:
            if len(self._families) > 500:
                return
            make = counter if name.endswith("_total") else gauge
            family = self._families[name] = make(name, text, "chip", "sensor")
        self._values.append(_Value(path, family, (chip, sensor), factor))


def _name_chips(node: Node, chips: list[HwmonChip]) -> Iterator[tuple[HwmonChip, str, str]]:
    """Yield the chips with their label `chip`, which is unique, and the name of their driver.

    Several chips of a device have their name after its name, or hwmonN if that is equal, too.
    """
    found: list[tuple[HwmonChip, str, str]] = []
    for each in chips:
        place = f"{HWMON}/hwmon{each.number}"
        title = clean_name(each.name) if each.directory == place else ""
        found.append((each, _chip_of(node, place, title), title))
    bases = Counter(base for _, base, _ in found)
    names = Counter((base, title) for _, base, title in found)
    for each, base, title in found:
        is_alike = not title or names[base, title] > 1
        suffix = f"hwmon{each.number}" if is_alike else title
        yield each, f"{base}_{suffix}" if bases[base] > 1 else base, title


def _chip_of(node: Node, place: str, title: str) -> str:
    """Return the name of a chip: its device's path, else its name, as in node_exporter."""
    if node.exists(f"{place}/device"):
        parts = node.resolve(f"{place}/device").split("/")
        words = [clean_name(part) for part in parts[-2:]]
        if all(words):
            return "_".join(words)
    return title or clean_name(node.resolve(place).rpartition("/")[2])


_EDAC = "sys/devices/system/edac/mc"
_EDAC_FAMILIES = tuple(
    (
        counter(f"node_edac_{kind}_errors_total", f"Total {kind} memory errors.", "controller"),
        counter(
            f"node_edac_csrow_{kind}_errors_total",
            f"Total {kind} memory errors for this csrow.", "controller", "csrow",
        ),
        counter(
            f"node_edac_channel_{kind}_errors_total",
            f"Total {kind} memory errors for this channel.",
            "controller", "csrow", "channel", "dimm_label",
        ),
        short,
    )
    for kind, short in (("correctable", "ce"), ("uncorrectable", "ue"))
)  # fmt: skip


class EdacCollector(Collector):
    """Memory errors by controller, row and channel. New ones are found within a minute."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._counts: list[tuple[str, Family, Labels]] = []
        self._known_until = 0.0

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /sys/devices/system/edac/mc."""
        now = node.clock.monotonic()
        if now >= self._known_until:
            self._counts = [*_find_counts(node)]
            self._known_until = now + _KNOWN_FOR
        files = self.keep_files(node)
        rows: dict[Family, list[tuple[Labels, float]]] = {}
        for path, family, labels in self._counts:
            count = read_number(files, path)
            if count is not None:
                rows.setdefault(family, []).append((labels, count))
        yield from rows.items()


def _find_counts(node: Node) -> Iterator[tuple[str, Family, Labels]]:
    """Yield the files with counts of errors, with family and labels."""
    for name in list_names(node, _EDAC):
        place, number = f"{_EDAC}/{name}", name.removeprefix("mc")
        if name != f"mc{number}" or not number.isdecimal():
            continue
        for of_controller, of_row, _, short in _EDAC_FAMILIES:
            yield f"{place}/{short}_count", of_controller, (number,)
            yield f"{place}/{short}_noinfo_count", of_row, (number, "unknown")
        for directory in list_names(node, place):
            row = directory.removeprefix("csrow")
            if directory != f"csrow{row}" or not row.isdecimal():
                continue
            for _, of_row, of_channel, short in _EDAC_FAMILIES:
                yield f"{place}/{directory}/{short}_count", of_row, (number, row)
                for file in list_names(node, f"{place}/{directory}"):
                    channel = file.removeprefix("ch").removesuffix(f"_{short}_count")
                    if channel.isdecimal():
                        path = f"{place}/{directory}/ch{channel}_dimm_label"
                        labels = (number, row, channel, _name_dimm(read_text(node, path)))
                        yield f"{place}/{directory}/{file}", of_channel, labels


def _name_dimm(text: str) -> str:
    """Return the label of a DIMM as node_exporter writes it."""
    name = text.strip().replace("#", "").replace("csrow", "_csrow")
    return name.replace("channel", "_channel") or "unknown"


_THERMAL = "sys/class/thermal"
_TEMPERATURE = gauge("node_thermal_zone_temp", "Zone temperature in Celsius", "zone", "type")
_STATE = gauge(
    "node_cooling_device_cur_state", "Current throttle state of the cooling device", "name", "type"
)
_MAX_STATE = gauge(
    "node_cooling_device_max_state", "Maximum throttle state of the cooling device", "name", "type"
)


def read_thermal_zone(node: Node) -> Iterator[FamilyRows]:
    """Read /sys/class/thermal: thermal zones and cooling devices."""
    zones: list[tuple[Labels, float]] = []
    states: list[tuple[Labels, float]] = []
    limits: list[tuple[Labels, float]] = []
    for name in list_names(node, _THERMAL):
        place = f"{_THERMAL}/{name}"
        kind = read_text(node, f"{place}/type")
        if name.startswith("thermal_zone"):
            value = read_number(node, f"{place}/temp")
            if value is not None:
                zones.append(((name.removeprefix("thermal_zone"), kind), value / 1000))
        elif name.startswith("cooling_device"):
            labels = (name.removeprefix("cooling_device"), kind)
            current = read_number(node, f"{place}/cur_state")
            limit = read_number(node, f"{place}/max_state")
            if current is not None and limit is not None:
                states.append((labels, current))
                limits.append((labels, limit))
    yield _TEMPERATURE, zones
    yield _STATE, states
    yield _MAX_STATE, limits


_SUPPLIES = "sys/class/power_supply"
_SUPPLY_FILES: tuple[tuple[float, dict[str, str]], ...] = (
    (1, {
        "authentic": "", "calibrate": "", "capacity": "", "capacity_alert_max": "",
        "capacity_alert_min": "", "cycle_count": "cyclecount", "online": "", "present": "",
        "time_to_empty_now": "time_to_empty_seconds", "time_to_full_now": "time_to_full_seconds",
    }),
    (1e6, {
        "current_boot": "", "current_max": "", "current_now": "current_ampere",
        "energy_empty": "", "energy_empty_design": "", "energy_full": "",
        "energy_full_design": "", "energy_now": "energy_watthour", "voltage_boot": "",
        "voltage_max": "", "voltage_max_design": "", "voltage_min": "", "voltage_min_design": "",
        "voltage_now": "voltage_volt", "voltage_ocv": "", "charge_control_limit": "",
        "charge_control_limit_max": "", "charge_counter": "", "charge_empty": "",
        "charge_empty_design": "", "charge_full": "", "charge_full_design": "",
        "charge_now": "charge_ampere", "charge_term_current": "", "constant_charge_current": "",
        "constant_charge_current_max": "", "constant_charge_voltage": "",
        "constant_charge_voltage_max": "", "precharge_current": "", "input_current_limit": "",
        "power_now": "power_watt",
    }),
    (10, {
        name: f"{name}_celsius"
        for name in (
            "temp", "temp_alert_max", "temp_alert_min", "temp_ambient", "temp_ambient_max",
            "temp_ambient_min", "temp_max", "temp_min",
        )
    }),
)  # fmt: skip
"""Divisor of the kernel's unit, and the metric by file; "" if they have the same name."""
_SUPPLY_FAMILIES = {
    file: (
        divisor,
        gauge(
            f"node_power_supply_{name or file}",
            f"{name or file} value of /sys/class/power_supply/<power_supply>.", "power_supply",
        ),
    )
    for divisor, files in _SUPPLY_FILES
    for file, name in files.items()
}  # fmt: skip
_SUPPLY_TEXTS = (
    "capacity_level", "charge_type", "health", "manufacturer", "model_name", "serial_number",
    "status", "technology", "type", "usb_type", "scope",
)  # fmt: skip
_SUPPLY = gauge(
    "node_power_supply_info", "info of /sys/class/power_supply/<power_supply>.",
    "power_supply", *_SUPPLY_TEXTS,
)  # fmt: skip


def read_powersupplyclass(node: Node) -> Iterator[FamilyRows]:
    """Read /sys/class/power_supply: properties of power supplies and batteries."""
    rows: dict[Family, list[tuple[Labels, float]]] = {}
    for supply in sorted(node.list(_SUPPLIES)):
        there = set(list_names(node, f"{_SUPPLIES}/{supply}"))
        for file in _SUPPLY_FAMILIES.keys() & there:
            divisor, family = _SUPPLY_FAMILIES[file]
            value = read_number(node, f"{_SUPPLIES}/{supply}/{file}")
            if value is not None:
                number = value if divisor == 1 else value / divisor
                rows.setdefault(family, []).append(((supply,), number))
        texts = (
            read_text(node, f"{_SUPPLIES}/{supply}/{file}").strip() if file in there else ""
            for file in _SUPPLY_TEXTS
        )
        rows.setdefault(_SUPPLY, []).append(((supply, *texts), 1))
    yield from rows.items()


_ZONE_NAME = re.compile(r"([a-z]+)(?:-([0-9]+))?(?:-die-[0-9]+)?", re.ASCII)


class RaplCollector(Collector):
    """Energy by RAPL zone. Wraps of the hardware's counters are added up."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families: dict[str, Family] = {}
        self._before: dict[str, int] = {}
        self._wrapped: dict[str, int] = {}

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /sys/class/powercap.

        Raise NotHereError without RAPL zones, NotPermittedError if none of them is readable.
        """
        zones = [name for name in sorted(node.list(POWERCAP)) if ZONE.fullmatch(name)]
        if not zones:
            raise NotHereError(f"/{POWERCAP}: no RAPL zone")
        rows: dict[Family, list[tuple[Labels, float]]] = {}
        indices: dict[str, int] = {}
        for zone in zones:
            place = f"{POWERCAP}/{zone}"
            found = _ZONE_NAME.fullmatch(read_text(node, f"{place}/name"))
            if found is None:
                continue
            kind = found[1]
            index = indices[kind] = indices.get(kind, -1) + 1
            energy = read_number(node, f"{place}/energy_uj")
            if energy is None:
                continue
            if energy < self._before.get(zone, 0):
                limit = read_number(node, f"{place}/max_energy_range_uj") or 0
                self._wrapped[zone] = self._wrapped.get(zone, 0) + limit
            self._before[zone] = energy
            family = self._families.get(kind)
            if family is None:
                family = self._families[kind] = counter(
                    f"node_rapl_{kind}_joules_total", f"Current RAPL {kind} value in joules",
                    "index", "path",
                )  # fmt: skip
            labels = (found[2] or str(index), f"/{place}")
            joules = (energy + self._wrapped.get(zone, 0)) / 1e6
            rows.setdefault(family, []).append((labels, joules))
        if not rows:
            raise NotPermittedError(f"/{POWERCAP}: energy_uj can't be read: {FIX}")
        yield from rows.items()
