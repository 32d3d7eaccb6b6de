"""Flags of jobs, at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.views.top.snapshot import MEANINGS, TopCard, find_notes, letters
from tests.unit.views.top.support import G, top_job


def flags(*cards: TopCard, **more: Any) -> str:
    return letters(find_notes(top_job(7, **more), cards))


def test_a_good_job_has_none() -> None:
    assert flags() == ""


@pytest.mark.parametrize(("idle", "expected"), [(14.0, ""), (15.0, "G")])
def test_an_idle_gpu(idle: float, expected: str) -> None:
    card = TopCard(index=1, utilization=20.0, idle=idle)
    assert flags(card, gpus=(1,)) == expected
    assert flags(card, gpus=(0,)) == ""


@pytest.mark.parametrize(("use", "watched", "expected"), [(15.0, 60.0, "g"), (16.0, 60.0, ""),
                                                         (15.0, 5.0, "")])  # fmt: skip
def test_low_gpus(use: float, watched: float, expected: str) -> None:
    assert flags(TopCard(index=1, utilization=use), gpus=(1,), watched=watched) == expected


def test_a_gpu_that_cannot_say_its_use_is_not_idle() -> None:
    assert flags(TopCard(index=1, utilization=None), gpus=(1,)) == ""


@pytest.mark.parametrize(("memory", "expected"), [(107.9, ""), (108.0, "M")])
def test_full_memory(memory: float, expected: str) -> None:
    assert flags(memory=memory * G) == expected


def test_page_cache_does_not_fill_memory() -> None:
    assert flags(memory=10 * G, charged=120 * G, peak=120 * G, cache=110 * G) == ""


def test_killed_processes() -> None:
    assert find_notes(top_job(7, oom_kills=3), ()) == ("M 3 killed",)


@pytest.mark.parametrize(("share", "expected"), [(9.9, ""), (10.0, "m"), (None, "")])
def test_waiting_for_memory(share: float | None, expected: str) -> None:
    assert flags(pressure=(0.0, share, 0.0)) == expected


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [(64.9, "c"), (65.0, ""), (0.85 / 32 * 100, "c"), (0.9 / 32 * 100, "C"),
     (1.02 / 32 * 100, "c")],
)  # fmt: skip
def test_low_cpus(cpu: float, expected: str) -> None:
    assert flags(history=(cpu,) * 20) == expected
    assert flags(history=(cpu,) * 20, watched=10.0) == ""


@pytest.mark.parametrize(("elapsed", "expected"), [(82_080.0, ""), (82_081.0, "T")])
def test_the_end_of_the_time_limit(elapsed: float, expected: str) -> None:
    assert flags(elapsed=elapsed) == expected


def test_incomplete_jobs() -> None:
    assert flags(cpus=None) == "?"
    assert flags(processes=0) == "?"


def test_the_system_has_no_notes_and_every_flag_a_meaning() -> None:
    assert find_notes(top_job(0, cpus=None), ()) == ()
    assert set(MEANINGS) == set("GgMmCcT?")
