"""Amounts in few characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views import amounts

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
    assert [amounts.short_percent(x) for x in (None, 0, 0.1, 99.4, 1e6)] == [
        "-", "0", "<1", "99", "9999",
    ]  # fmt: skip


def test_times() -> None:
    assert [amounts.short_time(x) for x in (None, 5, 11560, 90_000, 86400 * 12)] == [
        "-", "0:05", "3:12:40", "1d01h", "12d",
    ]  # fmt: skip


def test_numbers_keep_the_digits_that_count() -> None:
    assert [amounts.short_number(x) for x in (0.00131, 12.54, 48210.0, 1e12, float("nan"))] == [
        "0.00131", "12.54", "48210", "1e+12", "nan",
    ]  # fmt: skip
