"""The time that an address names."""

from __future__ import annotations

import pytest

from ccagent.views.web.addresses import read_times

NOW = 1_800_000_000


def test_a_range_ends_now() -> None:
    found = read_times({"range": "6h"}, NOW)
    assert (found.start, found.end, found.query) == (NOW - 21600, NOW, "range=6h")
    assert found.is_live


def test_fixed_times_are_seconds_or_local_texts() -> None:
    found = read_times({"from": "1799990000", "to": "1799999000"}, NOW)
    assert (found.start, found.end) == (1799990000, 1799999000)
    assert not found.is_live
    again = read_times(dict(zip(("from", "to"), found.fields, strict=True)), NOW)
    assert abs(again.start - found.start) < 60


@pytest.mark.parametrize(
    "query",
    [{"range": "1"}, {"range": "-5h"}, {"range": "99999d"}, {"range": "<script>"}, {"from": "x"},
     {"from": "1799999000", "to": "1799990000"}, {"to": "0001-01-01T00:00"}, {"from": "9" * 30}],
)  # fmt: skip
def test_what_is_no_time_shows_the_last_day(query: dict[str, str]) -> None:
    found = read_times(query, NOW)
    assert (found.start, found.end) == (NOW - 86400, NOW)
    assert found.problem
