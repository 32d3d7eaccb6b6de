"""Columns fit the terminal, whatever is in them."""

from __future__ import annotations

from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.terminal import Style, TableColumn, format_rows, width_of

COLUMNS = (
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
    columns = (
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
