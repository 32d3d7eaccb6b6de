"""Emission factors in g CO2 per kWh by hour: a file, a public source, and the kept values."""

from __future__ import annotations

import csv
import math
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import ConfigurationError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HOUR = 3600
LARGEST_FACTOR = 5000.0
"""Factors above this are implausible: burning lignite emits some 1,200 g per kWh."""

_KEPT_FOR = 24
"""Hours for which a value stands in for later hours without one."""

_LARGEST_FILE = 64 << 20
_FIELDS = ["zone", "time", "g_per_kwh"]


class Factors(NamedTuple):
    """Factors of a zone. constant: of all hours without another; None: unknown."""

    hours: Mapping[int, float]
    constant: float | None = None


def parse_factors(lines: Iterable[str], zone: str) -> Factors:
    """Parse a file of factors: CSV with the header `zone,time,g_per_kwh`.

    A row without a time is the constant of its zone. Times are ISO 8601, in UTC if they have no
    zone; several values of an hour are averaged. Raise UnparsableError with the number of a bad
    line.
    """
    hours: dict[int, list[float]] = {}
    constant: float | None = None
    for number, row in enumerate(read_rows(lines), 1):
        if not row or row[0].startswith("#"):
            continue
        names = [name.strip() for name in row]
        if names == _FIELDS:
            continue
        if len(names) != len(_FIELDS):
            raise UnparsableError(f"line {number}: expected {','.join(_FIELDS)}")
        if names[0] != zone:
            continue
        factor = parse_factor(names[2], f"line {number}")
        if names[1]:
            hours.setdefault(parse_time(names[1], f"line {number}") // HOUR, []).append(factor)
        else:
            constant = factor
    return Factors({hour: sum(each) / len(each) for hour, each in hours.items()}, constant)


def read_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows of CSV. Raise UnparsableError."""
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise UnparsableError(f"not CSV: {error}") from error


def parse_factor(value: object, place: str) -> float:
    """Return a factor. Raise UnparsableError for anything but a plausible number."""
    try:
        factor = float(str(value))
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= LARGEST_FACTOR:
        raise UnparsableError(f"{place}: {str(value)[:40]!r} is not a factor in g per kWh")
    return factor


def parse_time(value: object, place: str) -> int:
    """Return seconds since 1970 of a time in ISO 8601. Raise UnparsableError."""
    try:
        found = datetime.fromisoformat(str(value)[:40])
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as error:
        raise UnparsableError(f"{place}: {str(value)[:40]!r} is not a time") from error


def read_factor_file(path: str, zone: str) -> Factors:
    """Read a file of factors. Raise ConfigurationError if it can't be used."""
    try:
        if os.path.getsize(path) > _LARGEST_FILE:
            raise ConfigurationError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB")
        with open(path, encoding="utf-8", newline="") as file:
            found = parse_factors(file, zone)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (UnparsableError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not found.hours and found.constant is None:
        raise ConfigurationError(f"{path}: has no line of the zone {zone}")
    return found


class FactorSeries:
    """The factor of each hour: of the file, else of the source, else an older one or a constant."""

    def __init__(self, file: Factors | None = None) -> None:
        self.file = file or Factors({})
        self.hours: dict[int, float] = {}
        """Values of the source by hour."""
        self.constant: float | None = None
        """Constant of the source."""

    def at(self, hour: int) -> float | None:
        """Return the factor of an hour (seconds since 1970 / 3600); None if it is unknown.

        An hour without its own value gets the last one of the day before it, else the constant.
        """
        for each in range(hour, hour - _KEPT_FOR - 1, -1):
            for known in (self.file.hours, self.hours):
                if each in known:
                    return known[each]
        return self.file.constant if self.file.constant is not None else self.constant

    def mean(self, joules: Mapping[int, float]) -> float | None:
        """Return the mean factor of an energy by hour; None if one of its hours has none."""
        total = weighted = 0.0
        for hour, energy in joules.items():
            factor = self.at(hour) if energy > 0 else 0.0
            if factor is None:
                return None
            total += energy
            weighted += energy * factor
        return weighted / total if total > 0 else None

    def newest(self) -> int | None:
        """Return the newest hour of the source; None without one."""
        return max(self.hours, default=None)
