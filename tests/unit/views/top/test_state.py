"""Keys of `ccagent top`."""

from __future__ import annotations

import pytest

from ccagent.views.top.state import SORTS, ViewState


def press(state: ViewState, *keys: str, rows: int = 10, job: int | None = 7) -> ViewState:
    for key in keys:
        state = state.press(key, rows, 5, job)
    return state


@pytest.mark.parametrize("key", ["q", "F10"])
def test_quit(key: str) -> None:
    assert press(ViewState(), key).has_ended
    assert press(ViewState(has_help=True), key).has_ended


def test_help_closes_with_any_key() -> None:
    for key in ("?", "h", "F1"):
        assert press(ViewState(), key).has_help
        assert press(ViewState(), key, "x") == ViewState()


@pytest.mark.parametrize("key", ["RESIZE", "REDRAW"])
def test_another_size_of_the_terminal_is_no_key(key: str) -> None:
    for state in (ViewState(has_help=True), ViewState(is_typing=True, filter="x")):
        assert press(state, key) == state


def test_moving_stays_within_the_rows() -> None:
    assert press(ViewState(), "DOWN", "j", "k").row == 1
    assert press(ViewState(), "UP").row == 0
    assert press(ViewState(), "END", "DOWN").row == 9
    assert press(ViewState(), "PGDN", "PGDN", "PGDN", "PGUP").row == 4
    assert press(ViewState(row=5), "HOME").row == 0
    assert press(ViewState(), "END", rows=0).row == 0


def test_enter_opens_the_selected_job_and_escape_closes_it() -> None:
    opened = press(ViewState(row=3), "ENTER")
    assert (opened.job, opened.view, opened.row) == (7, "processes", 0)
    assert press(opened, "ESC") == ViewState()
    assert press(ViewState(), "ENTER", job=None) == ViewState()


def test_views_switch_and_switch_back() -> None:
    assert press(ViewState(), "p").view == "processes"
    assert press(ViewState(), "p", "p").view == "jobs"
    assert press(ViewState(), "G").view == "cards"
    assert press(ViewState(), "g", "p").view == "processes"
    assert press(ViewState(view="processes", job=7), "m") == ViewState(view="mounts", job=7)
    assert press(ViewState(view="mounts", job=7), "m") == ViewState()


def test_a_filter_is_typed() -> None:
    typed = press(ViewState(), "/", "q", "?", "x", "BACK")
    assert (typed.filter, typed.is_typing, typed.has_ended) == ("q?", True, False)
    kept = press(typed, "ENTER")
    assert (kept.filter, kept.is_typing) == ("q?", False)
    assert press(kept, "ESC").filter == ""
    assert press(typed, "ESC") == ViewState()
    assert press(ViewState(), "F4").is_typing


def test_a_filter_has_no_control_characters_and_an_end() -> None:
    typed = press(ViewState(), "/", "\x01", "F2", *"x" * 100)
    assert typed.filter == "x" * 60


def test_columns_to_sort_by() -> None:
    assert press(ViewState(), ">").sort == "MEM"
    assert press(ViewState(), "<").sort == "JOB"
    assert press(ViewState(), "M").sort == "MEM"
    assert press(ViewState(), "N").sort == "JOB"
    assert press(ViewState(view="processes"), "N").sort == "PID"
    assert press(ViewState(view="cards"), "T").sort == "GPU"
    assert press(ViewState(), "I").is_reversed
    for _ in SORTS["jobs"]:
        assert press(ViewState(), *[">"] * len(SORTS["jobs"])).sort == "CPU"


def test_each_view_has_its_own_sort() -> None:
    assert press(ViewState(), "M", "p", "T").sorts == (("jobs", "MEM"), ("processes", "TIME"))


def test_the_interval_has_bounds() -> None:
    assert press(ViewState(), "+").interval == 3.0
    assert press(ViewState(), "-", "-", "-").interval == 1.0
    assert press(ViewState(), *"++++++++").interval == 60.0
    assert press(ViewState(interval=7.0), "-").interval == 5.0


def test_pause_and_tree() -> None:
    assert press(ViewState(), " ").is_paused
    assert press(ViewState(), "t").is_tree
    assert press(ViewState(), "F5").view == "processes"


def test_no_key_does_anything_else() -> None:
    for key in ("x", "K", "F9", "F7", "OTHER", "RESIZE", "9", "\t"):
        assert press(ViewState(), key) == ViewState()


def test_a_node_without_jobs_begins_with_processes() -> None:
    assert ViewState().begin(has_jobs=False).view == "processes"
    assert ViewState(view="cards").begin(has_jobs=False).view == "cards"
    assert ViewState().begin(has_jobs=True).view == "jobs"
