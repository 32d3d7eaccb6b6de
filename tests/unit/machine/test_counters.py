"""Counters that wrap, reset, fall a little, and of parts that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.machine.counters import Sums, compute_delta, compute_deltas, hold_cpu_times

U32 = 2**32 - 1
NUMBERS = st.integers(0, 2**64 - 1)
ROWS = st.lists(NUMBERS, min_size=4, max_size=4)


@pytest.mark.parametrize(
    ("old", "new", "wraps_at", "delta"),
    [
        (1, 5, 0, 4),
        (U32 - 9, 10, U32, 20),
        (1000, 10, 0, 10),
        (1000, 900, 0, 0),
        (2**40, 10, U32, 10),
    ],
)
def test_the_growth_of_a_counter(old: int, new: int, wraps_at: int, delta: int) -> None:
    assert compute_delta(old, new, wraps_at) == delta


def test_idle_time_may_fall_a_little_and_an_offline_hwthread_has_none() -> None:
    old = [100, 0, 0, 10_000]
    assert hold_cpu_times(old, [110, 0, 0, 9_990], 100) == [110, 0, 0, 10_000]
    assert hold_cpu_times(old, [110, 0, 0, 9_000], 100) is None
    assert hold_cpu_times([5000, 0, 0, 7], [110, 0, 0, 9], 100, slice(3, 4)) == [5000, 0, 0, 9]


@given(ROWS, ROWS)
def test_no_delta_is_negative(old: list[int], new: list[int]) -> None:
    assert min(compute_deltas(old, new, U32)) >= 0


@given(st.lists(st.dictionaries(st.sampled_from("abc"), ROWS), max_size=6))
def test_sums_never_fall(readings: list[dict[str, list[int]]]) -> None:
    sums, before = Sums(4), [0] * 4
    for reading in readings:
        sums.add(reading)
        assert all(new >= old for new, old in zip(sums.total, before, strict=True))
        before = sums.total
