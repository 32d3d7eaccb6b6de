"""Files and sources of emission factors, and the factor of each hour.

A local server answers as the sources document.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError, NotHereError, UnparsableError
from ccagent.stores.metrics.settings import UsageSettings
from ccagent.stores.metrics.usage.factors import (
    SOURCES,
    Factors,
    FactorSeries,
    fetch_factors,
    parse_factors,
    read_factor_file,
)
from ccagent.stores.metrics.usage.keeper import UsageKeeper
from tests.support.http_server import Server, never, raw, say

FILE = """zone,time,g_per_kwh
# by country
FR,,56
DE,,381
FR,2026-11-01T00:00Z,40
FR,2026-11-01T00:30Z,44
FR,2026-11-01T03:00+02:00,30
"""
NOW = 1_793_493_000.0
"""2026-11-01T00:30Z."""
HOUR = int(NOW) // 3600
RTE = {
    "total_count": 3,
    "results": [
        {"taux_co2": None, "date_heure": "2026-11-01T00:30:00+00:00"},
        {"taux_co2": 21, "date_heure": "2026-11-01T00:15:00+00:00"},
        {"taux_co2": 23, "date_heure": "2026-11-01T01:00:00+01:00"},
        {"taux_co2": 30, "date_heure": "2026-10-31T23:45:00+00:00"},
    ],
}
MAPS = {
    "zone": "DE", "carbonIntensity": 302, "datetime": "2026-11-01T00:00:00.000Z",
    "updatedAt": "2026-10-31T23:51:00.000Z", "emissionFactorType": "lifecycle",
    "isEstimated": True, "estimationMethod": "TIME_SLICER_AVERAGE",
}  # fmt: skip
WATTTIME: dict[str, Any] = {
    "data": [
        {"point_time": "2026-11-01T00:00:00+00:00", "value": 870.0},
        {"point_time": "2026-11-01T00:05:00+00:00", "value": 890.0},
    ],
    "meta": {"data_point_period_seconds": 300, "region": "CAISO_NORTH", "warnings": [],
             "signal_type": "co2_moer", "units": "lbs_co2_per_mwh"},
}  # fmt: skip
OWID = """Entity,Code,Year,Carbon intensity
Europe,,2024,277
France,FRA,2023,56.04
France,FRA,2024,44.2
Germany,DEU,2024,344.1
"""


def test_a_file_has_constants_and_hours_of_zones() -> None:
    assert parse_factors(FILE.splitlines(), "FR") == Factors({HOUR: 42.0, HOUR + 1: 30.0}, 56.0)
    assert parse_factors(FILE.splitlines(), "DE") == Factors({}, 381.0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("FR,56", "line 1: expected zone,time,g_per_kwh"),
        ("FR,,-1", "line 1: '-1' is not a factor"),
        ("FR,,nan", "'nan' is not a factor"),
        ("FR,,1e9", "'1e9' is not a factor"),
        ("FR,yesterday,5", "line 1: 'yesterday' is not a time"),
    ],
)
def test_a_bad_line_is_named(line: str, reason: str) -> None:
    with pytest.raises(UnparsableError, match=reason):
        parse_factors([line], "FR")


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_text_is_factors_or_unparsable(lines: list[str]) -> None:
    try:
        found = parse_factors(lines, "FR")
    except UnparsableError:
        return
    assert all(0 <= factor <= 5000 for factor in found.hours.values())


def test_a_file_without_the_zone_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "factors.csv"
    path.write_text(FILE)
    assert read_factor_file(str(path), "FR").constant == 56
    with pytest.raises(ConfigurationError, match="has no line of the zone PL"):
        read_factor_file(str(path), "PL")
    path.write_bytes(b"FR,\xff,\0")
    with pytest.raises(ConfigurationError, match=r"factors\.csv"):
        read_factor_file(str(path), "FR")
    with pytest.raises(ConfigurationError, match="No such file"):
        read_factor_file(str(tmp_path / "none"), "FR")


def test_an_hour_without_a_value_has_the_last_of_a_day_else_the_constant() -> None:
    series = FactorSeries(Factors({HOUR: 42.0}, 56.0))
    series.hours = {HOUR: 99.0, HOUR + 2: 10.0}
    assert series.at(HOUR) == 42, "the file goes before the source"
    assert series.at(HOUR + 1) == 42
    assert series.at(HOUR + 26) == 10
    assert series.at(HOUR + 27) == 56
    assert series.at(HOUR - 1) == 56
    assert FactorSeries().at(HOUR) is None


def test_the_mean_factor_is_weighted_by_energy() -> None:
    series = FactorSeries(Factors({HOUR: 100.0, HOUR + 1: 400.0}))
    assert series.mean({HOUR: 3.0, HOUR + 1: 1.0}) == 175
    assert series.mean({HOUR: 3.0, HOUR - 1: 1.0}) is None
    assert series.mean({HOUR: 3.0, HOUR - 1: 0.0}) == 100
    assert series.mean({}) is None


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("ada:secret\n")
    path.chmod(0o600)
    return str(path)


def make(server: Server, source: str, secret: str = "", zone: str = "DE") -> UsageSettings:
    path = "/v3/historical" if source == "watttime" else "/some/path"
    settings: dict[str, Any] = {"source": source, "zone": zone, "token_file": secret}
    return UsageSettings(
        source_url=f"http://{server.place}{path}", time_limit=Duration("500ms"), **settings
    )


def asked(server: Server, number: int = -1) -> dict[str, list[str]]:
    return parse_qs(urlsplit(server.requests[number].path).query)


def test_rte_has_the_mean_of_each_hour(server: Server) -> None:
    server.script.append(say(200, json.dumps(RTE).encode()))
    found = fetch_factors(make(server, "rte"), NOW)
    assert found.hours == {HOUR: 22.0, HOUR - 1: 30.0}
    assert asked(server)["order_by"] == ["date_heure desc"]
    assert asked(server)["select"] == ["taux_co2,date_heure"]


def test_electricity_maps_gets_zone_and_token(server: Server, secret: str) -> None:
    server.script.append(say(200, json.dumps(MAPS).encode()))
    found = fetch_factors(make(server, "electricity-maps", secret), NOW)
    assert found.hours == {HOUR: 302.0}
    assert asked(server) == {"zone": ["DE"]}
    assert server.requests[0].headers["auth-token"] == "ada:secret"


def test_watttime_logs_in_and_has_grams_per_kwh(server: Server, secret: str) -> None:
    server.script += [say(200, b'{"token": "abc"}'), say(200, json.dumps(WATTTIME).encode())]
    found = fetch_factors(make(server, "watttime", secret, "CAISO_NORTH"), NOW)
    assert found.hours == {HOUR: pytest.approx(880 * 0.453592)}
    login, data = server.requests
    assert login.path == "/login"
    assert login.headers["Authorization"] == f"Basic {base64.b64encode(b'ada:secret').decode()}"
    assert data.headers["Authorization"] == "Bearer abc"
    assert asked(server)["region"] == ["CAISO_NORTH"]
    assert asked(server)["signal_type"] == ["co2_moer"]


def test_our_world_in_data_has_the_latest_year(server: Server) -> None:
    server.script.append(say(200, OWID.encode()))
    found = fetch_factors(make(server, "owid", zone="FRA"), NOW)
    assert (found.hours, found.constant) == ({}, 44.2)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'{"results": [{"taux_co2": "x"}]}', b"<html>", b"\xff",
     b'{"results": [{"taux_co2": -3, "date_heure": "2026-11-01T00:00:00+00:00"}]}',
     b'{"results": [{"taux_co2": 30, "date_heure": "1999-01-01T00:00:00+00:00"}]}',
     b'{"results": [{"taux_co2": 30, "date_heure": "never"}]}', b"[" * 100_000],
)  # fmt: skip
def test_nonsense_is_unparsable(server: Server, body: bytes) -> None:
    server.script.append(say(200, body))
    with pytest.raises(UnparsableError):
        fetch_factors(make(server, "rte"), NOW)


@pytest.mark.parametrize("source", SOURCES)
@given(body=st.binary(max_size=60))
def test_parsers_take_any_bytes(source: str, body: bytes) -> None:
    try:
        SOURCES[source].parse(body, "DE")
    except UnparsableError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("step", [503, 404, never, raw(b"not HTTP\r\n\r\n")])
def test_a_source_without_an_answer_is_not_here(server: Server, step: Any) -> None:
    server.script.append(step)
    with pytest.raises(NotHereError):
        fetch_factors(make(server, "rte"), NOW)


@pytest.mark.slow
def test_a_gone_source_keeps_the_last_value_and_says_so(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    settings = make(server, "rte")
    keeper = UsageKeeper(settings, str(tmp_path))
    server.script += [say(200, json.dumps(RTE).encode()), 503, say(200, b"[]"), never]
    problems: list[str] = []
    for _ in range(4):
        asyncio.run(keeper.refresh())
        assert keeper.factors.at(HOUR + 1) == 22
        problems.append(keeper.problem)
    assert problems[0] == ""
    assert problems[1] == "status 503"
    assert problems[2].startswith("another answer than documented")
    assert problems[3] == "no answer within 0.5 s"
    keeper.close()
    again = UsageKeeper(settings, str(tmp_path))
    assert again.factors.hours == {HOUR: 22.0, HOUR - 1: 30.0}, "values are kept on disk"
    again.close()


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "factors.csv"
    path.write_text("FR,,56\n")
    keeper = UsageKeeper(UsageSettings(factor_file=str(path), zone="FR"), str(tmp_path))
    for text, expected in (("FR,,60\n", 60), ("FR,,nonsense\n", 60), ("FR,,70\n", 70)):
        path.write_text(text)
        os.utime(path, (0, path.stat().st_mtime + expected + len(text)))
        asyncio.run(keeper.refresh())
        assert keeper.factors.at(HOUR) == expected
    keeper.close()
