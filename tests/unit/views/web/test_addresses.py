"""Names in paths: each name comes back, and none leaves its place. Times in queries."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.web.addresses import decode_segment, encode_segment, read_moment, read_times


@given(st.text(min_size=1, max_size=40))
def test_a_name_comes_back(name: str) -> None:
    segment = encode_segment(name)
    assert decode_segment(segment) == name
    assert segment.isascii()
    assert not set(segment) & set("/%?#\\&<>\"' ")
    assert segment.strip(".")


@pytest.mark.parametrize(
    ("name", "segment"),
    [("n042", "n042"), ("g-1.fox_2", "g-1.fox_2"), ("..", "~2E~2E"), (".", "~2E"), ("a/b", "a~2Fb"),
     ("~", "~7E"), (".hidden", "~2Ehidden")],
)  # fmt: skip
def test_usual_names_stay_as_they_are(name: str, segment: str) -> None:
    assert encode_segment(name) == segment


@pytest.mark.parametrize("segment", ["", "~", "~2", "~2e", "a/b", "%2F", "é", "a b", "x" * 4000])
def test_other_segments_are_no_names(segment: str) -> None:
    with pytest.raises(ValueError, match="not the address"):
        decode_segment(segment)


NOW = 1_800_000_000


def test_a_range_ends_now() -> None:
    found = read_times({"range": "6h"}, NOW)
    assert (found.start, found.end, found.query) == (NOW - 21600, NOW, "range=6h")
    assert found.is_live


def test_fixed_times_are_seconds() -> None:
    found = read_times({"from": "1799990000", "to": "1799999000"}, NOW)
    assert (found.start, found.end) == (1799990000, 1799999000)
    assert not found.is_live


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "zone", "time"),
    [
        ("2026-11-28T10:00", UTC, "2026-11-28T10:00Z"),
        ("2026-11-28T10:00", BERLIN, "2026-11-28T09:00Z"),
        ("2026-07-01T10:00", BERLIN, "2026-07-01T08:00Z"),
        ("2026-10-25T02:30", BERLIN, "2026-10-25T00:30Z"),  # twice: the first one
        ("2026-03-29T02:30", BERLIN, "2026-03-29T01:30Z"),  # skipped by the clock
        ("2026-11-28T10:00+05:30", BERLIN, "2026-11-28T04:30Z"),
    ],
)
def test_a_text_is_a_time_of_its_zone(text: str, zone: tzinfo, time: str) -> None:
    assert read_moment(text, zone) == datetime.fromisoformat(time).timestamp()


@pytest.mark.parametrize(
    "query",
    [{"range": "1"}, {"range": "-5h"}, {"range": "99999d"}, {"range": "<script>"}, {"from": "x"},
     {"from": "1799999000", "to": "1799990000"}, {"to": "0001-01-01T00:00"}, {"from": "9" * 30}],
)  # fmt: skip
def test_what_is_no_time_shows_the_last_day(query: dict[str, str]) -> None:
    found = read_times(query, NOW)
    assert (found.start, found.end) == (NOW - 86400, NOW)
    assert found.problem
