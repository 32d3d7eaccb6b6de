"""energy: idle power is learned while nothing runs, never from the least under load."""

from __future__ import annotations

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.splitting import LEAST_WINDOWS, MOST_WINDOWS, IdleFloor

P0 = EnergyDomain("package", 0)


def learn(floor: IdleFloor, watts: float, windows: int) -> None:
    for _ in range(windows * 6):
        floor.add(P0, round(watts * 10e6), 10.0, is_idle=True)


def test_it_is_unknown_until_some_windows_were_idle() -> None:
    floor = IdleFloor({})
    learn(floor, 50.0, LEAST_WINDOWS - 1)
    assert floor.watts(P0) is None
    learn(floor, 50.0, 1)
    assert floor.watts(P0) == 50.0
    assert floor.watts(EnergyDomain("package", 1)) is None


def test_a_tick_of_work_ends_the_window() -> None:
    floor = IdleFloor({})
    for _ in range(100):
        for _ in range(5):
            floor.add(P0, 10**9, 10.0, is_idle=True)
        floor.add(P0, 10**6, 10.0, is_idle=False)
    assert floor.watts(P0) is None


def test_it_is_a_low_quantile_and_not_the_minimum() -> None:
    floor = IdleFloor({})
    learn(floor, 10.0, 1)
    learn(floor, 50.0, 39)
    assert floor.watts(P0) == 50.0


def test_the_windows_are_bounded() -> None:
    floor = IdleFloor({})
    learn(floor, 50.0, MOST_WINDOWS + 10)
    assert len(floor.windows[P0]) == MOST_WINDOWS


def test_what_is_configured_is_not_learned() -> None:
    floor = IdleFloor({"package": 33.0, "dram": 0.0})
    learn(floor, 50.0, 9)
    assert floor.watts(P0) == 33.0
