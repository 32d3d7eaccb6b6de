"""When an agent is due."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ccagent.daemon.runner import Schedule

NOON = 1_700_000_000.0 // 86400 * 86400 + 43200


def test_ticks_are_aligned_to_the_clock() -> None:
    schedule = Schedule(30, NOON + 7)
    assert schedule.next == NOON + 30
    assert not schedule.is_due(NOON + 29.9)
    assert schedule.is_due(NOON + 30.01)
    assert schedule.next == NOON + 60


def test_ticks_that_were_slept_through_are_not_made_up_for() -> None:
    schedule = Schedule(30, NOON)
    assert schedule.is_due(NOON + 3605)
    assert schedule.next == NOON + 3630
    assert not schedule.is_due(NOON + 3605)


def test_a_clock_set_back_a_little_does_not_repeat_a_tick() -> None:
    schedule = Schedule(30, NOON)
    assert schedule.is_due(NOON + 30.001)
    assert not schedule.is_due(NOON + 29.990)
    assert not schedule.is_due(NOON + 30.002)
    assert schedule.is_due(NOON + 60)


def test_a_clock_set_back_far_begins_anew() -> None:
    schedule = Schedule(30, NOON)
    assert schedule.is_due(NOON + 30)
    assert not schedule.is_due(NOON - 86400)
    assert schedule.next == NOON - 86400 + 30


def test_days_begin_at_midnight_utc() -> None:
    assert Schedule(86400, NOON).next == NOON + 43200


@given(
    st.sampled_from([1, 5, 30, 60, 300, 3600, 86400]),
    st.lists(st.floats(-200_000, 200_000), max_size=50),
)
def test_however_the_clock_jumps_a_tick_is_never_far_and_never_double(
    every: int, jumps: list[float]
) -> None:
    now = NOON
    schedule = Schedule(every, now)
    ticks: list[float] = []
    for jump in jumps:
        now += jump
        before = schedule.next
        if schedule.is_due(now):
            ticks.append(before)
        assert schedule.next - now <= 2 * every
        assert schedule.next > now
    forward = [tick for tick, later in pairwise(ticks) if tick == later]
    assert not forward or min(jumps) <= -every
