"""Public sources of emission factors: their questions, and parsers of their answers.

Sources: RTE's eCO2mix on Opendatasoft (api/explore/v2.1), Electricity Maps (v3, carbon-intensity),
WattTime (v3, historical), Our World in Data (grapher, carbon-intensity-electricity).
"""

from __future__ import annotations

import base64
import ssl
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import NotHereError, UnparsableError
from ccagent.log import printable
from ccagent.net.http_client import HTTP_ERRORS, HttpConnection
from ccagent.net.urls import server_of_url, split_url
from ccagent.stores.metrics.usage.factors import HOUR, Factors, parse_factor, parse_time, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.stores.metrics.usage.settings import UsageSettings

_LARGEST = 16 << 20
_POUNDS_PER_MWH = 0.453592
"""g per kWh of a pound per MWh."""

_PAST, _AHEAD = 72 * HOUR, HOUR
"""Times of a source's values further away are wrong."""


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
    for row in read_rows(text.decode("utf-8", "replace").splitlines()):
        if len(row) >= 4 and row[1] == zone and row[2].isascii() and row[2].isdigit():
            newest = max(newest or (0, 0.0), (int(row[2]), parse_factor(row[3], f"year {row[2]}")))
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
        hour = parse_time(text, "time") // HOUR
        found.setdefault(hour, []).append(parse_factor(value, "factor"))
    return Factors({hour: sum(each) / len(each) for hour, each in found.items()})


def _decode(text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnparsableError(f"another answer than documented: {printable(str(error))}") from error
