"""Energy counters: wraps are followed, and what cannot be known is a flaw."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccagent.machine.sensors import EnergyCounter, EnergyReading

RANGE = 65_532_610_987


def read(counter: EnergyCounter, value: int, moment: float, steady: float | None = None) -> None:
    counter.add(EnergyReading(value, moment, moment if steady is None else steady))


@given(st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 900)), min_size=1, max_size=30))
def test_all_wraps_are_followed_while_gaps_are_short(steps: list[tuple[float, float]]) -> None:
    counter = EnergyCounter(RANGE, 1000.0)
    energy, moment = 7, 100.0
    read(counter, energy, moment)
    for seconds, watts in steps:
        moment += seconds
        energy += int(seconds * watts * 1e6)
        read(counter, energy % (RANGE + 1), moment)
    delta = counter.take()
    assert delta is not None
    assert delta.flaw == ""
    assert delta.energy == counter.total == energy - 7


def test_the_first_reading_has_no_delta() -> None:
    counter = EnergyCounter(RANGE, 1000.0)
    assert counter.take() is None
    read(counter, 5, 10.0)
    assert counter.take() is None
    read(counter, 6, 11.0)
    assert counter.take() == (1, 1.0, "")
    assert counter.take() is None


def test_a_gap_in_which_it_may_wrap_twice() -> None:
    counter = EnergyCounter(RANGE, 1000.0)
    read(counter, 5, 10.0)
    read(counter, 6, 80.0)
    read(counter, 7, 81.0)
    delta = counter.take()
    assert delta is not None
    assert delta.energy == 0
    assert "70 s between two readings" in delta.flaw
    read(counter, 9, 82.0)
    assert counter.take() == (2, 1.0, "")


def test_resets_suspends_and_clocks_that_go_back() -> None:
    for first, second, expected in (
        (EnergyReading(9_000_000, 1.0, 1.0), EnergyReading(5, 2.0, 2.0), "was reset"),
        (EnergyReading(0, 1.0, 1.0), EnergyReading(5, 9.0, 2.0), "suspended"),
        (EnergyReading(0, 5.0, 5.0), EnergyReading(5, 4.0, 4.0), ""),
    ):
        counter = EnergyCounter(0, 1000.0)
        counter.add(first)
        counter.add(second)
        delta = counter.take()
        if not expected:
            assert delta is None
            continue
        assert delta is not None
        assert expected in delta.flaw


def test_power_that_cannot_be_is_a_reset() -> None:
    counter = EnergyCounter(0, 1000.0)
    read(counter, 0, 1.0)
    read(counter, 2_000_000_000, 2.0)
    delta = counter.take()
    assert delta is not None
    assert delta.flaw == "the counter was reset"


def test_a_counter_without_wraps_may_be_left_alone_for_long() -> None:
    counter = EnergyCounter(0, 1000.0)
    assert counter.longest_gap == 0
    read(counter, 0, 1.0)
    read(counter, 360_000_000_000, 3601.0)
    assert counter.take() == (360_000_000_000, 3600.0, "")


def test_it_continues_after_an_earlier_process() -> None:
    counter = EnergyCounter(RANGE, 1000.0)
    counter.restore(EnergyReading(100, 10.0, 10.0))
    read(counter, 5_000_100, 15.0)
    assert counter.take() == (5_000_000, 5.0, "")
