"""Amounts in few characters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views import amounts
from ccagent.views.amounts import (
    format_age,
    format_duration,
    format_number,
    format_quantity,
    format_share,
)

G = 1024.0**3


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, "-"), (0, "0"), (999, "999"), (1000, "1K"), (4.4 * G, "4.4G"), (101 * G, "101G"),
     (1000 * G, "1T"), (64 * G, "64G"), (1e30, "9999E")],
)  # fmt: skip
def test_sizes(size: float | None, expected: str) -> None:
    assert amounts.short_size(size) == expected


@given(st.floats(0, 1e25))
def test_sizes_have_at_most_five_characters(size: float) -> None:
    assert len(amounts.short_size(size)) <= 5


def test_a_pair_has_its_unit_once() -> None:
    assert amounts.short_pair(101 * G, 120 * G) == "101/120G"
    assert amounts.short_pair(512 * 1024**2, 4 * G) == "512M/4G"
    assert (amounts.short_pair(G, None), amounts.short_pair(None, G)) == ("1G", "-")


def test_a_little_is_not_nothing() -> None:
    assert [amounts.short_percent(x) for x in (None, 0, 0.1, 0.5, 99.4, 1e6)] == [
        "-", "0", "<1", "<1", "99", "9999",
    ]  # fmt: skip


def test_short_times() -> None:
    assert [amounts.short_time(x) for x in (None, 5, 11560, 90_000, 86400 * 12)] == [
        "-", "0:05", "3:12:40", "1d01h", "12d",
    ]  # fmt: skip


def test_numbers_keep_the_digits_that_count() -> None:
    assert [amounts.short_number(x) for x in (0.00131, 12.54, 48210.0, 1e12, float("nan"))] == [
        "0.00131", "12.54", "48210", "1e+12", "nan",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0:00:00"), (2467.9, "0:41:07"), (86399, "23:59:59"), (266400, "3-02:00:00"),
     (-5, "0:00:00")],
)  # fmt: skip
def test_times(seconds: float, expected: str) -> None:
    assert amounts.clock(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (0.04, "<0.1"), (6.25, "6.2"), (12.4, "12"), (99.7, "99.9"), (100, "100"),
     (100.4, "100")],
)  # fmt: skip
def test_percent_is_never_rounded_to_all_or_nothing(value: float, expected: str) -> None:
    assert amounts.percent(value) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0.01, "100M"), (0.5, "600M"), (0.95, "1000M"), (1.2, "2G"), (30, "30G"), (38.4, "40G"),
     (101, "110G"), (1001, "1100G")],
)  # fmt: skip
def test_requests_of_memory_are_rounded_up(size: float, expected: str) -> None:
    assert amounts.request_memory(size * amounts.GB) == expected


def test_requests_of_time_are_rounded_up() -> None:
    assert amounts.request_time(61) == "0:15:00"
    assert amounts.request_time(3 * 86400 + 1) == "3-01:00:00"


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_out_of_range_raise_nothing(value: float) -> None:
    assert (amounts.number(value), amounts.percent(value)) == ("?", "?")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0, "%", "0 %"), (6.18, "%", "6.18 %"), (97.04, "%", "97 %"), (380.0, "W", "380 W"),
     (13_900.0, "W", "13.9 kW"), (1024.0**3, "B", "1 GiB"), (120 * 1024.0**3, "B", "120 GiB"),
     (1e9, "B/s", "1 GB/s"), (None, "B", "unknown"), (math.nan, "W", "unknown"),
     (0.0012, "s", "1.2 ms"), (0.0, "s", "0 s"), (55.0, "degC", "55 °C"), (3.5, "", "3.5"),
     (2_500_000.0, "1/s", "2.5M /s"), (-3.25, "%", "-3.25 %"), (1023.9 * 1024**2, "B", "1 GiB"),
     (0.75, "1/s", "0.75 /s"), (512.0, "B", "512 B"), (2048.0, "B", "2 KiB")],
)  # fmt: skip
def test_quantities(value: float | None, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25"), (12.0, "12"), (1234.4, "1,234"), (0.0004, "0.0004")]
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


def test_what_is_unknown_is_never_zero() -> None:
    assert format_share(None, 10) == "unknown"
    assert format_share(3, None) == "unknown"
    assert format_share(3, 0) == "unknown"
    assert format_duration(None) == "unknown"
    assert format_age(None) == "unknown"


def test_times_of_pages() -> None:
    assert format_duration(2467) == "0:41:07"
    assert format_duration(86400 + 3600) == "1-01:00:00"
    assert [format_age(one) for one in (5, 600, 10_000, 10**6)] == [
        "5 s",
        "10 min",
        "2 h",
        "11 days",
    ]
