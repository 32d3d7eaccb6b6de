"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from ccagent.views.amounts import (
    format_age,
    format_duration,
    format_number,
    format_quantity,
    format_share,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0, "%", "0 %"), (6.18, "%", "6.18 %"), (97.04, "%", "97 %"), (380.0, "W", "380 W"),
     (13_900.0, "W", "13.9 kW"), (1024.0**3, "B", "1 GB"), (120 * 1024.0**3, "B", "120 GB"),
     (1e9, "B/s", "1 GB/s"), (None, "B", "unknown"), (math.nan, "W", "unknown"),
     (0.0012, "s", "1.2 ms"), (0.0, "s", "0 s"), (55.0, "degC", "55 °C"), (3.5, "", "3.5"),
     (2_500_000.0, "1/s", "2.5M 1/s"), (-3.25, "%", "-3.25 %"), (1023.9 * 1024**2, "B", "1 GB")],
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


def test_times() -> None:
    assert format_duration(2467) == "0:41:07"
    assert format_duration(86400 + 3600) == "1-01:00:00"
    assert [format_age(one) for one in (5, 600, 10_000, 10**6)] == [
        "5 s",
        "10 min",
        "2 h",
        "11 days",
    ]
