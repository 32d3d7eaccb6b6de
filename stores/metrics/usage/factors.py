"""Emission factors in g CO2 per kWh by hour: a file, public sources, and the kept values.

Sources: RTE's eCO2mix on Opendatasoft (api/explore/v2.1), Electricity Maps (v3, carbon-intensity),
WattTime (v3, historical), Our World in Data (grapher, carbon-intensity-electricity).
"""

from __future__ import annotations

import base64
import csv
import math
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, NotHereError, UnparsableError
from ccagent.log import printable
from ccagent.net.urls import server_of_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ccagent.stores.metrics.settings import UsageSettings

HOUR = 3600
_LARGEST_FACTOR = 5000.0
"""Factors above this are implausible: burning lignite emits some 1,200 g per kWh."""

_KEPT_FOR = 24
"""Hours for which a value stands in for later hours without one."""

_LARGEST_FILE = 64 << 20
_FIELDS = ["zone", "time", "g_per_kwh"]
_LARGEST = 16 << 20
_POUNDS_PER_MWH = 0.453592
"""g per kWh of a pound per MWh."""

_PAST, _AHEAD = 72 * HOUR, HOUR
"""Times of a source's values further away are wrong."""


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
    for number, row in enumerate(_read_rows(lines), 1):
        if not row or row[0].startswith("#"):
            continue
        names = [name.strip() for name in row]
        if names == _FIELDS:
            continue
        if len(names) != len(_FIELDS):
            raise UnparsableError(f"line {number}: expected {','.join(_FIELDS)}")
        if names[0] != zone:
            continue
        factor = _parse_factor(names[2], f"line {number}")
        if names[1]:
            hours.setdefault(_parse_time(names[1], f"line {number}") // HOUR, []).append(factor)
        else:
            constant = factor
    return Factors({hour: sum(each) / len(each) for hour, each in hours.items()}, constant)


def _read_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows of CSV. Raise UnparsableError."""
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise UnparsableError(f"not CSV: {error}") from error


def _parse_factor(value: object, place: str) -> float:
    """Return a factor. Raise UnparsableError for anything but a plausible number."""
    try:
        factor = float(str(value))
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= _LARGEST_FACTOR:
        raise UnparsableError(f"{place}: {str(value)[:40]!r} is not a factor in g per kWh")
    return factor


def _parse_time(value: object, place: str) -> int:
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


class _RteRow(msgspec.Struct):
    taux_co2: float | None = None
    date_heure: str = ""


class _RteAnswer(msgspec.Struct):
    results: list[_RteRow]


class _MapsAnswer(msgspec.Struct, rename="camel"):
    carbon_intensity: float
    datetime: str


class _WattTimeRow(msgspec.Struct):
    point_time: str
    value: float


class _WattTimeAnswer(msgspec.Struct):
    data: list[_WattTimeRow]


class _WattTimeLogin(msgspec.Struct):
    token: str


class FactorSource(NamedTuple):
    """A source: its URL, query for a zone and a time, header of its token, and parser."""

    url: str
    query: Callable[[str, float], dict[str, str]]
    parse: Callable[[bytes, str], Factors]
    token_header: str = ""


def parse_rte(text: bytes, zone: str) -> Factors:
    """Parse records of eCO2mix: g CO2 per kWh produced, each quarter of an hour; null: not yet."""
    del zone
    rows = _decode(text, _RteAnswer).results
    return _hours((row.date_heure, row.taux_co2) for row in rows if row.taux_co2 is not None)


def parse_electricity_maps(text: bytes, zone: str) -> Factors:
    """Parse `carbon-intensity/latest`: g CO2eq per kWh, life cycle, of an hour."""
    del zone
    found = _decode(text, _MapsAnswer)
    return _hours([(found.datetime, found.carbon_intensity)])


def parse_watttime(text: bytes, zone: str) -> Factors:
    """Parse `historical` of the signal `co2_moer`: pounds per MWh, marginal."""
    del zone
    rows = _decode(text, _WattTimeAnswer).data
    return _hours((row.point_time, row.value * _POUNDS_PER_MWH) for row in rows)


def parse_owid(text: bytes, zone: str) -> Factors:
    """Parse CSV of Entity, Code, Year and the factor: the latest year of a code, `FRA`."""
    newest: tuple[int, float] | None = None
    for row in _read_rows(text.decode("utf-8", "replace").splitlines()):
        if len(row) >= 4 and row[1] == zone and row[2].isascii() and row[2].isdigit():
            newest = max(newest or (0, 0.0), (int(row[2]), _parse_factor(row[3], f"year {row[2]}")))
    if newest is None:
        raise UnparsableError(f"has no factor of the code {zone}")
    return Factors({}, newest[1])


def _ask_rte(zone: str, now: float) -> dict[str, str]:
    del zone, now
    return {
        "select": "taux_co2,date_heure", "order_by": "date_heure desc", "limit": "96",
        "where": "taux_co2 is not null", "timezone": "UTC",
    }  # fmt: skip


def _ask_zone(zone: str, now: float) -> dict[str, str]:
    del now
    return {"zone": zone}


def _ask_all(zone: str, now: float) -> dict[str, str]:
    del zone, now
    return {}


def _ask_watttime(zone: str, now: float) -> dict[str, str]:
    start, end = (datetime.fromtimestamp(one, UTC).isoformat() for one in (now - 7200, now))
    return {"region": zone, "signal_type": "co2_moer", "start": start, "end": end}


SOURCES: dict[str, FactorSource] = {
    "rte": FactorSource(
        "https://reseaux-energies-rte.opendatasoft.com/api/explore/v2.1/catalog/datasets/eco2mix-national-tr"
        "/records", _ask_rte, parse_rte,
    ),
    "electricity-maps": FactorSource(
        "https://api.electricitymap.org/v3/carbon-intensity/latest",
        _ask_zone, parse_electricity_maps, "auth-token",
    ),
    "watttime": FactorSource(
        "https://api.watttime.org/v3/historical", _ask_watttime, parse_watttime, "Authorization"
    ),
    "owid": FactorSource(
        "https://ourworldindata.org/grapher/carbon-intensity-electricity.csv",
        _ask_all, parse_owid,
    ),
}  # fmt: skip


def fetch_factors(settings: UsageSettings, now: float | None = None) -> Factors:
    """Ask the source. Raise NotHereError without an answer, UnparsableError for a bad one."""
    source, now = SOURCES[settings.source], time.time() if now is None else now
    url = settings.source_url or source.url
    headers = {"Accept": "application/json, text/csv"}
    if source.token_header:
        secret = read_secret(settings.token_file)
        if settings.source == "watttime":
            secret = f"Bearer {_log_in(settings, url, secret)}"
        headers[source.token_header] = secret
    query = urlencode(source.query(settings.zone, now))
    found = source.parse(_get(settings, f"{url}?{query}" if query else url, headers), settings.zone)
    hours = {
        hour: factor
        for hour, factor in found.hours.items()
        if now - _PAST <= hour * HOUR <= now + _AHEAD
    }
    if not hours and found.constant is None:
        raise UnparsableError("has no factor of the last days")
    return Factors(hours, found.constant)


def _log_in(settings: UsageSettings, url: str, secret: str) -> str:
    """Return a token of WattTime, valid for 30 minutes."""
    basic = base64.b64encode(secret.encode()).decode("ascii")
    target = split_url(url)
    place = target._replace(path="/login", query="").geturl()
    answer = _get(settings, place, {"Authorization": f"Basic {basic}"})
    token: str = _decode(answer, _WattTimeLogin).token
    return token


def _get(settings: UsageSettings, url: str, headers: dict[str, str]) -> bytes:
    # Few stores ask a source.
    import ssl

    from ccagent.net.http_client import HTTP_ERRORS, HttpConnection

    target = split_url(url)
    context = ssl.create_default_context() if target.scheme == "https" else None
    connection = HttpConnection(
        server_of_url(target), context, settings.time_limit.seconds, largest=_LARGEST
    )
    path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
    try:
        answer = connection.get(path, headers)
    except HTTP_ERRORS as error:
        raise NotHereError(connection.explain(error, headers.values())) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise NotHereError(f"status {answer.status}")
    return answer.body


def _hours(values: Iterable[tuple[str, float | None]]) -> Factors:
    """Return the mean of each hour."""
    found: dict[int, list[float]] = {}
    for text, value in values:
        hour = _parse_time(text, "time") // HOUR
        found.setdefault(hour, []).append(_parse_factor(value, "factor"))
    return Factors({hour: sum(each) / len(each) for hour, each in found.items()})


def _decode(text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnparsableError(f"another answer than documented: {printable(str(error))}") from error
