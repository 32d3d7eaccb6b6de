"""Texts of others on a terminal: nothing in them controls it, and columns stay columns."""

from __future__ import annotations

import unicodedata
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.terminal import (
    Style,
    TableColumn,
    clean,
    cut,
    fill,
    find_style,
    format_rows,
    width_of,
)


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "\x9b31m", "a\rb", "a\nb", "\x07", "\u202eabc", "\u2066abc", "\u200f",
     "\u05d0\u05d1", "\u0627", "e\u0301", "\u200b", "\ufeff", "\udcff", "\U000e0041", "\u2028",
     "\u1100\u1161\u11a8", "\ud7b0"],
)  # fmt: skip
def test_hostile_characters_are_replaced(text: str) -> None:
    found = clean(text)
    assert found.isprintable()
    assert len(found) == len(text)
    assert not any(unicodedata.bidirectional(char) in {"R", "AL", "RLO"} for char in found)
    found.encode()


def test_other_scripts_are_shown_unless_the_output_is_ascii() -> None:
    assert clean("größe 比較") == "größe 比較"
    assert clean("größe 比較", is_ascii=True) == "gr??e ??"


def test_wide_characters_have_two_columns() -> None:
    assert (width_of("比較"), cut("比較", 3), fill("比", 4)) == (4, "比+", "比  ")
    assert fill("12", 4, is_right=True) == "  12"


@given(st.text(), st.integers(0, 40))
def test_a_filled_text_has_exactly_its_columns(text: str, width: int) -> None:
    found = fill(clean(text), width)
    assert width_of(found) == width
    assert found.isprintable()


def test_no_color_and_dumb_terminals_have_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for terms, is_tty in (("xterm", True), ("dumb", True), ("", True), ("xterm", False)):
        monkeypatch.setenv("TERM", terms)
        monkeypatch.delenv("NO_COLOR", raising=False)

        def is_terminal(_: object, *, found: bool = is_tty) -> bool:
            return found

        monkeypatch.setattr("ccagent.views.terminal.is_terminal", is_terminal)
        assert find_style().has_colours is (terms == "xterm" and is_tty)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not find_style().has_colours


def test_style_paints_nothing_without_colours() -> None:
    assert Style().paint("bad", "x") == "x"
    assert Style(has_colours=True).paint("bad", "x") == "\x1b[1;31mx\x1b[0m"


COLUMNS: tuple[TableColumn[Any], ...] = (
    TableColumn("NAME", itemgetter(0)), TableColumn("SIZE", itemgetter(1), True, 1),
    TableColumn("NOTE", itemgetter(2), rank=2), TableColumn("TEXT", itemgetter(3)),
)  # fmt: skip


def test_numbers_end_at_the_right() -> None:
    rows = [["a", "1", "x", "long"], ["bb", "100", "", "text"]]
    assert format_rows(COLUMNS, rows, 80, Style()) == [
        "NAME SIZE NOTE TEXT", "a       1 x    long", "bb    100      text",
    ]  # fmt: skip


def test_a_narrow_terminal_loses_the_highest_rank_first() -> None:
    rows = [["name", "123", "a longer note", "text"]]
    assert format_rows(COLUMNS, rows, 16, Style())[0] == "NAME SIZE TEXT"
    assert format_rows(COLUMNS, rows, 9, Style())[0] == "NAME TEXT"


def test_numbers_are_whole_or_left_out() -> None:
    columns: tuple[TableColumn[Any], ...] = (
        TableColumn("METRIC", itemgetter(0)), TableColumn("OF", itemgetter(1), most=40),
        TableColumn("VALUE", itemgetter(2), True),
    )  # fmt: skip
    rows = [["a_long_name_of_a_metric", "node", "123456"]]
    assert format_rows(columns, rows, 20, Style()) == [
        "METRIC   OF    VALUE",
        "a_long_+ node 123456",
    ]
    rows = [["a_long_name", "hwthread 0 cache", "1"]]
    assert format_rows(columns, rows, 20, Style())[1] == "a_lon+ hwthre+     1"
    assert format_rows(columns, rows, 12, Style()) == ["METRIC  OF", "a_long+ hwt+"]


def test_columns_without_values_are_left_out() -> None:
    assert format_rows(COLUMNS, [["a", "-", "", "t"]], 80, Style())[0] == "NAME TEXT"


@given(st.lists(st.tuples(*[st.text(max_size=30)] * 4), max_size=5), st.integers(4, 60))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = format_rows(COLUMNS, rows, width, Style())
    assert len(lines) == len(rows) + 1
    assert all(width_of(line) <= width and line.isprintable() for line in lines)
