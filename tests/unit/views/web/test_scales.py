"""Axes have round steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.web.drawing import find_top, time_ticks, value_ticks


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


@given(st.integers(0, 2 * 10**9), st.integers(1, 400 * 86400))
def test_times_have_a_few_round_steps(start: int, span: int) -> None:
    ticks = time_ticks(start, start + span)
    assert len(ticks) <= 41
    assert all(start <= tick <= start + span for tick in ticks)


def test_odd_values_have_an_axis() -> None:
    assert [find_top(one) for one in (0.0, -1.0, float("nan"), float("inf"))] == [1.0] * 4
