"""Files of emission factors, and the factor of each hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import ConfigurationError, UnparsableError
from ccagent.stores.metrics.usage.factors import (
    Factors,
    FactorSeries,
    parse_factors,
    read_factor_file,
)

FILE = """zone,time,g_per_kwh
# by country
FR,,56
DE,,381
FR,2026-11-01T00:00Z,40
FR,2026-11-01T00:30Z,44
FR,2026-11-01T03:00+02:00,30
"""
HOUR = 1_793_491_200 // 3600
"""2026-11-01T00:00Z."""


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
