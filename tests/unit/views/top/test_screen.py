"""Screens of `ccagent top` as text, at the widths of real terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.views.terminal import width_of
from ccagent.views.top.screen import KEYS, draw
from ccagent.views.top.state import ViewState
from tests.unit.views.top.support import JOBS, PROCESSES, screen, snapshot

STATES = (
    ViewState(), ViewState(view="processes"),
    ViewState(view="processes", job=4711007, is_tree=True), ViewState(view="cards"),
    ViewState(has_help=True), ViewState(filter="al"),
    ViewState(is_typing=True, filter="x"), ViewState(job=99, view="processes"),
    ViewState(has_meters=True, hides_ended=True),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_jobs_at_80_columns() -> None:
    assert screen() == [
        "n042 08:00:00 up 12d  load 46/64 cpu 70% mem 147/256G gpu 2/4 busy  2s  by CPU",
        "JOB      USER   CPUS CPU% MEM       MEM% GPU GPU%  READ WRITE    TIME NOTE",
        "4711001  alice    32  98% 101/120G   84%   0    -   11M    1M 3:12:40",
        "4711012  carol    16  71% 32/32G     99%   0    -   11M    1M   41:07 M",
        "4711007  bob       8  12% 4.4/64G     7%   2  21%     0     0 3:12:40 G",
        "(system) -         -   1% 9.1G         -   -    -   39K  205K       -",
        "", "", "", "", "",
        "?help q quit /filter <>sort t tree p procs g GPU m mounts space pause +-interval",
    ]  # fmt: skip


def test_jobs_at_160_columns_have_history_and_notes_in_words() -> None:
    found = screen(width=160)
    assert found[1] == (
        "JOB      NAME     USER   PART   CPUS CPU% HISTORY              PROC THR MEM/LIMIT PEAK"
        " CACHE PSI c/m/i GPU GPU% GMEM   W  READ WRITE    TIME/LIMIT NOTE"
    )
    assert found[4] == (
        "4711007  train.py bob    normal    8  12% .:.:.:.:.:.:.:.:.:.:   33  41 4.4/64G   110G"
        "  1.2G 3/0/<1      2  21%   8G 180     0     0 3:12:40/1d00h G GPU 2 idle"
    )


def test_narrow_terminals_lose_write_read_and_time_in_turn() -> None:
    titles = [screen(width=width)[1] for width in (80, 72, 66, 60)]
    assert ["WRITE" in title for title in titles] == [True, False, False, False]
    assert ["READ" in title for title in titles] == [True, True, False, False]
    assert ["TIME" in title for title in titles] == [True, True, True, False]
    assert all("NOTE" in title for title in titles)


def test_the_notes_of_jobs_stay_at_20_columns() -> None:
    assert screen(width=20)[1:4] == [
        "JOB      CPU% NOTE", "4711001   98%", "4711012   71% M",
    ]  # fmt: skip
    assert screen(ViewState(view="processes"), width=20)[1:3] == [
        "    PID CPU% CMD", "    901   96 train.+",
    ]  # fmt: skip


def test_help_fits_80_columns_and_24_lines() -> None:
    found = screen(ViewState(has_help=True), height=24)
    assert found[-1] == "  Any key: back. Nothing here ends a process."
    assert not any(line.endswith("+") for line in found)


ENDED = structs.replace(
    PROCESSES[0], pid=0, ppid=1, command="cc1 <ended>", cpu=150.0, is_ended=True
)


def test_ended_processes_are_last_without_a_number_and_may_be_hidden() -> None:
    processes = (ENDED, *PROCESSES)
    for is_tree, is_reversed in ((False, False), (False, True), (True, False)):
        state = ViewState(view="processes", is_tree=is_tree, is_reversed=is_reversed)
        rows = [one.split() for one in screen(state, processes=processes)[2:6]]
        assert (rows[-1][0], rows[-1][-2:]) == ("-", ["cc1", "<ended>"])
        assert [one[0] for one in rows].count("-") == 1
    hidden = "\n".join(screen(ViewState(view="processes", hides_ended=True), processes=processes))
    assert "<ended>" not in hidden
    assert "<ended>" in "\n".join(screen(ViewState(has_help=True), height=24))


def test_each_hwthread_has_a_meter() -> None:
    cpus = (0.0, 50.0, 100.0, 3.0)
    found = screen(ViewState(has_meters=True), cpus=cpus)
    assert found[1:5] == [
        "   0[           0%]    1[||||      50%]    2[|||||||||100%]    3[           3%]",
        "JOB      USER   CPUS CPU% MEM       MEM% GPU GPU%  READ WRITE    TIME NOTE",
        *screen()[2:4],
    ]


def test_many_hwthreads_have_a_sign_each() -> None:
    found = screen(ViewState(has_meters=True), height=24, cpus=(100.0,) * 100)
    assert found[1:3] == ["   0 " + "@" * 74, "  74 " + "@" * 26]
    assert all(len(one) <= 80 for one in found)


def test_cards() -> None:
    assert screen(ViewState(view="cards"))[1:6] == [
        "GPU USE% MEM MEM%   W LIMIT  C     JOB USER NOTE",
        "  0   91 31G   39 300     -  -       1 -",
        "  1   42  8G    - 120     -  - 4711007 bob",
        "  2    0   0    -  60     - 31 4711007 -    idle 10:00",
        "  3    ?   0    -   -     -  -       - -    failing",
    ]


def test_a_job_opens_into_its_processes_and_cards() -> None:
    assert screen(ViewState(view="processes", job=4711007, is_tree=True))[1:9] == [
        "job 4711007 train.py  bob normal  33 processes, 41 threads  G GPU 2 idle",
        "CPU .:.:.:.:.:.:.:.:.:.:  memory 4.4G of 64G, peak 110G, page cache 1.2G",
        "GPU 1 42% 8G 120W",
        "GPU 2 0% 0 60W",
        "hwthreads ################################################################",
        "    PID USER       JOB CPU%  RES  THR    TIME GPU GPU-MEM  READ WRITE CMD",
        "    900 bob    4711007    0   1M    1    0:00 -         -     -     - bash",
        "    901 bob    4711007   96   4G   41 1:56:40 1        8G     -     -   train.py",
    ]


def test_a_job_that_ended_says_so() -> None:
    assert (
        screen(ViewState(view="processes", job=99))[1] == "job 99 has ended, or is not on this node"
    )


def test_empty_views_say_why() -> None:
    assert screen(jobs=())[2] == "no job on this node"
    assert screen(ViewState(view="cards"), cards=())[2] == "no GPU on this node"
    assert screen(ViewState(filter="nobody"))[2] == "nothing matches the filter; Esc shows all"


def test_what_a_user_cannot_see_is_told() -> None:
    note = "as an ordinary user: I/O of others' processes is hidden"
    assert screen(hidden=(note,))[-1] == f"{note}  ?help q quit"


def test_pause_sort_and_interval_are_in_the_head() -> None:
    state = ViewState(is_paused=True, sorts=(("jobs", "MEM"),), is_reversed=True)
    assert screen(state, width=100)[0].endswith("PAUSED  by MEM-")
    assert screen(ViewState(interval=10.0))[0].endswith("10s  by CPU")


def test_a_long_name_of_the_node_leaves_room_for_the_state() -> None:
    long = structs.replace(snapshot(), node="cn-042-login.hpc.university.example.org")
    begins = {140: f"{long.node} 08:", 80: "cn-042-login  load", 60: "cn-042-l  load"}
    for width, begin in begins.items():
        head = draw(long, ViewState(is_paused=True), width, 24).lines[0].text
        assert head.startswith(begin)
        assert head.endswith("PAUSED  by CPU") is (width > 60)


def test_the_selected_row_stays_visible() -> None:
    many = tuple(structs.replace(JOBS[0], job=n) for n in range(1, 101))
    for row in (0, 1, 50, 98, 99):
        found = draw(snapshot(jobs=many), ViewState(row=row), 80, 12)
        (selected,) = [line for line in found.lines if line.is_selected]
        assert selected.text.startswith(f"{row + 1} ")
        assert (len(found.lines), found.rows, found.page, found.job) == (12, 100, 9, row + 1)


def test_the_filter_is_of_all_that_names_a_job() -> None:
    for text in ("4711012", "CAROL", "assem"):
        found = draw(snapshot(), ViewState(filter=text), 80, 12)
        assert (found.rows, found.job) == (1, 4711012)


def test_help_explains_keys_and_flags() -> None:
    found = "\n".join(screen(ViewState(has_help=True), height=40))
    assert "a GPU of the job is idle" in found
    assert "Nothing here ends a process." in found
    assert "kill" not in KEYS


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (20, 2), (80, 24), (400, 200)])
@pytest.mark.parametrize("state", STATES)
def test_every_size_of_a_terminal_has_a_screen(state: ViewState, size: tuple[int, int]) -> None:
    width, height = size
    lines = draw(snapshot(), state, width, height).lines
    assert len(lines) <= height
    assert all(width_of(line.text) <= max(20, width) for line in lines)


@given(st.text(max_size=40), st.sampled_from(STATES), st.sampled_from((20, 80, 160)), st.booleans())
def test_no_name_reaches_the_terminal_raw(
    name: str, state: ViewState, width: int, is_ascii: bool
) -> None:
    hostile = snapshot(
        jobs=tuple(structs.replace(job, name=name, user=name, partition=name) for job in JOBS),
        processes=tuple(structs.replace(one, command=name, user=name) for one in PROCESSES),
        hidden=(name,),
    )
    lines = draw(hostile, state._replace(filter=""), width, 24, is_ascii=is_ascii).lines
    assert all(line.text.isprintable() for line in lines)
    assert all(width_of(line.text) <= width for line in lines)
    assert not is_ascii or all(line.text.isascii() for line in lines)
