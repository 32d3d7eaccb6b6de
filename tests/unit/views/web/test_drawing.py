"""Drawings as SVG: lines, heat maps, scales of axes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid
from ccagent.views.web.drawing import (
    GridCell,
    PlotLimit,
    PlotLine,
    band_path,
    draw_cells,
    draw_heat_map,
    draw_lines,
    draw_sparkline,
    find_top,
    line_path,
    time_ticks,
    value_ticks,
)
from ccagent.views.web.plots import PagePlot

GRID = TimeGrid(1_800_000_000, 60, 4)
NAN = float("nan")


def follow(path: str) -> dict[int, int]:
    """Return the height at each step of a path, as a browser would draw it."""
    found: dict[int, int] = {}
    x = y = 0
    is_single = False
    for command, numbers in re.findall(r"([MlhV])([-0-9 .]*)", path):
        each = [float(one) for one in re.findall(r"-?\d*\.?\d+", numbers)]
        if command == "M":
            is_single = each[0] % 1 > 0
            x, y = int(each[0] + is_single / 2), int(each[1])
        elif command == "l":
            x, y = x + int(each[0]), y + int(each[1])
        elif command == "h" and not is_single:
            for _ in range(int(each[0])):
                x += 1
                found[x] = y
            continue
        found[x] = y
    return found


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=1, max_size=40))
def test_the_path_passes_through_all_values_and_no_gap(values: list[float | None]) -> None:
    row = np.array([NAN if one is None else one for one in values])
    found = follow(line_path(row, 100.0, 1000))
    assert found.keys() == {number for number, one in enumerate(values) if one is not None}
    for place, height in found.items():
        assert abs((1000 - height) / 10 - row[place]) <= 0.06


def test_a_gap_is_a_gap_and_no_zero() -> None:
    assert line_path(np.array([50.0, 50, NAN, 50, 50]), 100.0, 100) == "M0 50h1M3 50h1"


def test_a_single_value_is_seen() -> None:
    assert line_path(np.array([NAN, 50.0, NAN]), 100.0, 100) == "M0.5 50h1"


def test_a_band_goes_there_and_back() -> None:
    low, high = np.array([10.0, 20, 30]), np.array([40.0, 50, 60])
    assert band_path(low, high, 100.0) == "M0 300l1-50l1-50V350l-1 50l-1 50z"


def test_names_are_text_and_the_drawing_is_xml() -> None:
    values = np.array([1.0, 2, 3, 4])
    hostile = PlotLine("<script>\"&'", SeriesBuckets(values, values, values))
    text = draw_lines(
        [hostile], GRID, "%", UTC, limits=[PlotLimit("limit", 3.0)], label='"><script>'
    )
    root = ET.fromstring(f"<div>{text}</div>")
    assert root.find(".//script") is None
    assert root.find(".//title").text == "<script>\"&'"  # type: ignore[union-attr]
    assert "style=" not in text


def test_a_limit_above_the_values_is_seen() -> None:
    values = np.array([1.0, 1, 1, 1])
    line = PlotLine("a", SeriesBuckets(values, values, values))
    text = draw_lines([line], GRID, "W", UTC, limits=[PlotLimit("limit", 80.0)])
    assert 'class="limit" d="M0 0H3"' in text


def test_memory_has_steps_that_are_round_in_gigabytes() -> None:
    values = np.array([1.0, 2, 3, 4]) * 30 * 1024**3
    line = PlotLine("a", SeriesBuckets(values, values, values))
    labels = re.findall(r">([0-9.,]+ [KMGTi]*B)<", draw_lines([line], GRID, "B", UTC))
    assert labels[0] == "0 B"
    assert labels[-1] == "150 GiB"


def test_few_bytes_have_whole_steps() -> None:
    values = np.array([0.0, 0, 0, 1])
    line = PlotLine("a", SeriesBuckets(values, values, values))
    labels = re.findall(r">([0-9.]+) B<", draw_lines([line], GRID, "B", UTC))
    assert labels == ["0", "1", "2", "3", "4"]


def test_nothing_to_draw_is_no_error() -> None:
    values = np.full(4, NAN)
    line = PlotLine("a", SeriesBuckets(values, values, values))
    assert "line s0" in draw_lines([line], GRID, "%", UTC)
    assert "<svg" in draw_lines([], GRID, "%", UTC)
    assert "<svg" in draw_sparkline(np.full(3, NAN))
    assert "<svg" in draw_sparkline(np.empty(0))


HOSTILE = "load\u202e\u2066\u200f\x1b<b>"


def test_names_in_labels_and_titles_move_no_text() -> None:
    row = np.array([1.0, 2, 3, 4])
    line = PlotLine(HOSTILE, SeriesBuckets(row, row, row))
    plot = PagePlot(key="load", title=HOSTILE, unit="", grid=GRID, lines=(line,))
    cells = draw_cells([GridCell(HOSTILE, 0.5, "/n1")], label=HOSTILE)
    heat = draw_heat_map(np.ones((1, 4)), [HOSTILE], (0, 60), label=HOSTILE).draw(UTC)
    for drawn in (plot.draw(UTC), cells, heat, draw_sparkline(row, 5.0, HOSTILE), plot.as_json()):
        text = str(drawn)
        assert "load\N{REPLACEMENT CHARACTER}" in text
        assert not set(text) & set("\u202e\u2066\u200f\x1b"), text


@given(st.floats(1e-9, 1e15))
def test_an_axis_holds_its_values_and_wastes_little(largest: float) -> None:
    top = find_top(largest)
    assert largest <= top * (1 + 1e-6)
    assert top <= 2.0001 * largest


@given(st.floats(1e-6, 1e12))
def test_values_have_a_few_steps_from_zero(largest: float) -> None:
    ticks = value_ticks(find_top(largest))
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 9


BERLIN = ZoneInfo("Europe/Berlin")


@given(st.integers(0, 2 * 10**9), st.integers(1, 400 * 86400), st.sampled_from([UTC, BERLIN, None]))
def test_times_have_a_few_round_steps(start: int, span: int, zone: tzinfo | None) -> None:
    ticks = time_ticks(start, start + span, zone)
    assert len(ticks) <= 41
    assert all(start <= tick <= start + span for tick in ticks)


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-07-01"])
def test_times_stay_round_when_the_clock_changes(day: str) -> None:
    noon = int(datetime.fromisoformat(day).replace(hour=12, tzinfo=BERLIN).timestamp())
    ticks = time_ticks(noon - 86400, noon + 86400, BERLIN)
    times = {f"{datetime.fromtimestamp(one, BERLIN):%H:%M}" for one in ticks}
    assert times == {"00:00", "12:00"}
    assert len(ticks) >= 4


def test_odd_values_have_an_axis() -> None:
    assert [find_top(one) for one in (0.0, -1.0, float("nan"), float("inf"))] == [1.0] * 4
