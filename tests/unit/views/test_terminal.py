"""Texts of others on a terminal: nothing in them controls it, and columns stay columns."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.terminal import Style, choose_style, clean, cut, fill, width_of


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


def test_no_color_and_dumb_terminals_have_no_colours() -> None:
    assert choose_style({"TERM": "xterm"}, is_terminal=True).has_colours
    for environment in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
        assert not choose_style(environment, is_terminal=True).has_colours
    assert not choose_style({"TERM": "xterm"}, is_terminal=False).has_colours


def test_style_paints_nothing_without_colours() -> None:
    assert Style().paint("bad", "x") == "x"
    assert Style(has_colours=True).paint("bad", "x") == "\x1b[1;31mx\x1b[0m"
