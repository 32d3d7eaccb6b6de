"""Amounts as people and Slurm's options have them."""

from __future__ import annotations

import pytest

from ccagent.views import amounts


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
