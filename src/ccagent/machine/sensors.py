"""Sensors below /sys/class: chips of hwmon, RAPL zones of powercap; energy counters with few bits.

Source of hwmon: Documentation/hwmon/sysfs-interface.rst of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import parse_or, read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

HWMON = "sys/class/hwmon"
_DIRECTORY = re.compile(r"hwmon([0-9]{1,6})", re.ASCII)
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_LONGEST_LABEL = 64

POWERCAP = "sys/class/powercap"

# intel-rapl-mmio repeats the same packages. The directory also has links to the zones of a package:
# intel-rapl:0:1 is beside intel-rapl:0. Numbers are hexadecimal (powercap_sys.c of Linux).
ZONE = re.compile(r"((?:intel|amd)-rapl:[0-9a-f]{1,6})(?::[0-9a-f]{1,6})?", re.ASCII)

# Only root may read since Linux 5.10 (CVE-2020-8694).
FIX = (
    "let the agent's group read them with a udev rule,"
    ' SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="*-rapl:*",'
    ' RUN+="/bin/chgrp ccagent %S%p/energy_uj", RUN+="/bin/chmod 0440 %S%p/energy_uj",'
    " or give its service CapabilityBoundingSet= and AmbientCapabilities=CAP_DAC_READ_SEARCH"
)
"""The fix for unreadable counters, also for `ccagent doctor`."""

_NAME = re.compile(rb"package-([0-9]{1,6})(?:-die-[0-9]{1,6})?|(core|uncore|dram|psys)(?:-[0-9]+)?")

_METRICS = {b"core": "core_power", b"uncore": "uncore_power", b"dram": "mem_power",
            b"psys": "psys_power"}  # fmt: skip

MOST_WATTS = {
    "cpu_power": 1000.0, "mem_power": 400.0, "core_power": 1000.0, "uncore_power": 500.0,
    "psys_power": 5000.0,
}  # fmt: skip
"""Maximum power of a zone. It determines the time in which a counter wraps at most once: on AMD, 65
s for 65.7 kJ."""

_UPDATE = 0.1
"""Maximum delay of a counter in seconds: some are updated only every 60 ms."""

_SUSPENDED = 1.0


class HwmonChip(NamedTuple):
    """A chip. number: N of its directory hwmonN. name: empty without one.

    directory: of its name, hwmonN or hwmonN/device. files: their names.
    """

    number: int
    name: str
    directory: str
    files: list[str]


def list_chips(node: Node, names: list[str], errors: list[str]) -> Iterator[HwmonChip]:
    """Yield the chips by number; an unreadable chip adds to `errors`.

    names: names in /sys/class/hwmon.
    """
    for number in sorted(int(found[1]) for found in map(_DIRECTORY.fullmatch, names) if found):
        try:
            name, directory = _read_name(node, f"{HWMON}/hwmon{number}")
            yield HwmonChip(number, name, directory, node.list(directory))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))


def list_files(node: Node, chip: HwmonChip) -> Iterator[tuple[str, list[str]]]:
    """Yield hwmonN and hwmonN/device with the names of their files; skip what is missing.

    Drivers may have a name in the first and sensors in the second.
    """
    own = f"{HWMON}/hwmon{chip.number}"
    for directory in (own, f"{own}/device"):
        try:
            files = chip.files if directory == chip.directory else node.list(directory)
        except CcagentError:
            continue
        yield directory, files


def _read_name(node: Node, own: str) -> tuple[str, str]:
    """Return the name of a chip, and the directory of the name."""
    # Before Linux 3.15 the files were in the directory of the device.
    for directory in (own, f"{own}/device"):
        try:
            name = node.read_single(f"{directory}/name")
        except NotHereError:
            continue
        return clean_label(name.decode("ascii", "replace"), _LONGEST_LABEL), directory
    return "", own


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


def clean_label(text: str, longest: int = 255) -> str:
    """Return a name as a tag value: printable ASCII of at most `longest` characters.

    A question mark replaces every other character, quotation marks and backslashes. The result is
    empty if nothing is left.
    """
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '\\"' else "?"
        for letter in text.strip()
    )[:longest].strip()


class RaplZone(NamedTuple):
    """A zone: path of its counter in uJ, which wraps to 0 after `wraps_at` (0: unknown).

    socket: None for the whole platform.
    """

    path: str
    metric: str
    socket: int | None
    wraps_at: int


def parse_zone_name(content: bytes) -> tuple[str, int | None]:
    """Parse the file `name`: package-0, package-0-die-1, core, uncore, dram, psys, psys-1.

    Return the metric, and the socket if the name contains one. Raise UnparsableError. Source:
    rapl_domain_names and rapl_add_package() in drivers/powercap/intel_rapl_common.c.
    """
    found = _NAME.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not a zone of RAPL: {content[:80]!r}")
    if found[2]:
        return _METRICS[found[2]], None
    return "cpu_power", int(found[1])


def parse_energy(content: bytes) -> int:
    """Parse energy_uj or max_energy_range_uj. Return uJ. Raise UnparsableError."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20:
        raise UnparsableError(f"not an energy: {content[:80]!r}")
    energy = int(text)
    if energy > LARGEST_UINT:
        raise UnparsableError(f"an energy is out of range: {energy}")
    return energy


def list_packages(node: Node) -> dict[str, str]:
    """Return the package of each zone by zone name. Raise NotHereError without zones."""
    listed = sorted(node.list(POWERCAP))
    packages = {name: found[1] for name in listed if (found := ZONE.fullmatch(name))}
    if not packages:
        raise NotHereError(f"/{POWERCAP}: no zone of RAPL")
    return packages


def read_zones(
    node: Node, packages: dict[str, str], errors: list[str]
) -> tuple[list[RaplZone], bool]:
    """Return the zones with a known socket, and whether all names could be read.

    Each unreadable name adds an error to `errors`.
    """
    zones: list[RaplZone] = []
    sockets: dict[str, int] = {}
    is_complete = True
    for name, package in packages.items():
        path = f"{POWERCAP}/{name}"
        try:
            metric, socket = read_parsed(node, f"{path}/name", parse_zone_name)
        except CcagentError as error:
            errors.append(str(error))
            is_complete = False
            continue
        if socket is not None:
            sockets[name] = socket
        elif metric != "psys_power":
            if package not in sockets:
                continue
            socket = sockets[package]
        limit = parse_or(node, f"{path}/max_energy_range_uj", parse_energy, 0)
        zones.append(RaplZone(f"{path}/energy_uj", metric, socket, limit))
    return zones, is_complete


class EnergyReading(NamedTuple):
    """A reading. value: uJ. moment: seconds since boot, including suspended time.

    steady: seconds of a clock that stops while the machine is suspended.
    """

    value: int
    moment: float
    steady: float


class EnergyDelta(NamedTuple):
    """Energy since the previous call of `take`.

    energy: uJ. seconds: between the first and the last reading. flaw: the reason why the energy is
    unknown; empty if it is known.
    """

    energy: int
    seconds: float
    flaw: str = ""


class EnergyCounter:
    """Adds up the deltas of a counter. An unknown delta is a flaw and is never estimated.

    wraps_at: maximum value in uJ, after which the counter continues at 0; 0: it never wraps.
    most_watts: maximum power; a larger delta means that the counter was reset.
    """

    def __init__(self, wraps_at: int, most_watts: float) -> None:
        self.wraps_at = wraps_at
        self.most_watts = most_watts
        self.last: EnergyReading | None = None
        self.total = 0
        self.flaws = 0
        self._taken: EnergyReading | None = None
        self._energy = 0
        self._flaw = ""

    @property
    def longest_gap(self) -> float:
        """Return the seconds for the full range at maximum power; 0 if the counter never wraps."""
        return self.wraps_at / 1e6 / self.most_watts

    def restore(self, reading: EnergyReading) -> None:
        """Continue from a reading of an earlier process since the same boot."""
        self.last = self._taken = reading

    def add(self, reading: EnergyReading) -> None:
        """Add a reading. A gap that is too long, or a reset, makes the interval invalid."""
        before, self.last = self.last, reading
        if before is None:
            self._taken = reading
            return
        delta, flaw = self._subtract(before, reading)
        self._energy += delta
        self.total += delta
        if flaw:
            self._flaw = flaw
            self.flaws += 1

    def take(self) -> EnergyDelta | None:
        """Return the energy since the last call; None before the second reading."""
        first, last = self._taken, self.last
        if first is None or last is None or last.moment <= first.moment:
            return None
        flaw = self._flaw
        found = EnergyDelta(0 if flaw else self._energy, last.moment - first.moment, flaw)
        self._taken, self._energy, self._flaw = last, 0, ""
        return found

    def interrupt(self, reason: str) -> None:
        """Make the current interval invalid: a reading is missing."""
        if self.last is not None:
            self._flaw = self._flaw or reason

    def _subtract(self, before: EnergyReading, now: EnergyReading) -> tuple[int, str]:
        """Return the delta and an empty text, or 0 and the reason why the delta is unknown."""
        seconds = now.moment - before.moment
        if seconds < 0:
            return 0, "the clock since boot went back"
        if seconds - (now.steady - before.steady) > _SUSPENDED:
            return 0, "the machine was suspended"
        delta = now.value - before.value
        if self.wraps_at:
            if seconds > self.longest_gap:
                return 0, (
                    f"{seconds:.0f} s between two readings, and the counter may wrap"
                    f" every {self.longest_gap:.0f} s"
                )
            if delta < 0:
                delta += self.wraps_at + 1
        if not 0 <= delta <= self.most_watts * 1e6 * (seconds + _UPDATE):
            return 0, "the counter was reset"
        return delta, ""
