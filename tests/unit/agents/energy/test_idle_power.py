"""energy: idle power is learned while the node is idle, and bounded while it works."""

from __future__ import annotations

import math
import random

from hypothesis import assume, given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import DomainUse, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.idle_power import (
    LEAST_WINDOWS,
    MOST_WINDOWS,
    IdleFloor,
    IdlePower,
    LoadBounds,
)

P0, CARD = EnergyDomain("package", 0), EnergyDomain("card", 0)
CPUS = 16


def tick(
    floor: IdleFloor, watts: float, busy: float = 0.0, *, domain: EnergyDomain = P0,
    seconds: float = 10.0, is_idle: bool = False,
) -> IdlePower:  # fmt: skip
    """Add a tick with so many busy cpus."""
    energy = MeasuredEnergy(round(watts * seconds * 1e6), seconds, "x")
    use = DomainUse({}, round(busy * seconds * 1e6), 1, 0 if domain.kind == "card" else CPUS)
    return floor.add(domain, energy, use, is_idle=is_idle)


def make_floor(package: float = 0.0) -> IdleFloor:
    return IdleFloor({"package": package, "dram": 0.0}, {"package": 2.0, "card": 2.0})


def learn(floor: IdleFloor, watts: float, windows: int) -> None:
    for _ in range(windows * 6):
        tick(floor, watts, is_idle=True)


def test_it_is_unknown_until_some_windows_were_idle() -> None:
    floor = make_floor()
    learn(floor, 50.0, LEAST_WINDOWS - 1)
    assert floor.watts(P0) is None
    learn(floor, 50.0, 1)
    assert floor.watts(P0) == 50.0
    assert floor.watts(EnergyDomain("package", 1)) is None


def test_a_tick_of_work_ends_the_window() -> None:
    floor = make_floor()
    for _ in range(100):
        for _ in range(5):
            tick(floor, 100.0, is_idle=True)
        tick(floor, 0.1)
    assert floor.watts(P0) is None


def test_it_is_a_low_quantile_and_not_the_minimum() -> None:
    floor = make_floor()
    learn(floor, 10.0, 1)
    learn(floor, 50.0, 39)
    assert floor.watts(P0) == 50.0


def test_the_windows_are_bounded() -> None:
    floor = make_floor()
    learn(floor, 50.0, MOST_WINDOWS + 10)
    assert len(floor.windows[P0]) == MOST_WINDOWS


def test_what_is_configured_is_not_learned() -> None:
    floor = make_floor(33.0)
    learn(floor, 50.0, 9)
    assert tick(floor, 60.0, 8.0) == IdlePower(33.0, 33.0, 33.0, is_known=True)
    assert floor.watts(P0) == 33.0


def test_one_power_bounds_it_to_less_than_that() -> None:
    least, watts, most, is_known = tick(make_floor(), 124.0, CPUS)
    assert (least, watts, most, is_known) == (0.0, 62.0, 124.0, False)
    assert tick(make_floor(), 64.0, 1.0).watts > 60.0  # most of it is idle power
    assert tick(make_floor(), 64.0, 1.0, seconds=2.0).most == 64.0  # too short for a window


def test_the_lowest_power_seen_bounds_it() -> None:
    floor = make_floor()
    tick(floor, 124.0, 16.0)
    tick(floor, 90.0, 16.0)
    assert tick(floor, 124.0, 16.0).most < 91.0


def test_partly_loaded_windows_make_it_known() -> None:
    """60 W idle, 4 W for each busy cpu."""
    floor = make_floor()
    for busy in (16.0, 8.0, 2.0, 0.5):
        power = tick(floor, 60.0 + 4 * busy, busy)
    assert power.is_known
    assert 56.0 < power.least < 60.0 < power.most < 63.0
    restored = make_floor()
    restored.restore(P0, [], (power.least, power.most), [])
    again = tick(restored, 124.0, 16.0)
    assert (again.least, again.most) == (power.least, power.most)
    assert again.is_known


def test_a_regression_narrows_it_on_a_full_node() -> None:
    """Never less than half of the cpus are busy; watts per cpu are 4 on average, up to twofold."""
    chance, floor = random.Random(7), make_floor()
    busy, watts = 16.0, 4.0
    for _ in range(600):
        if not chance.randrange(20):
            busy, watts = chance.uniform(8, 16), chance.uniform(3.0, 5.0)
        tick(floor, 60 + watts * busy, busy, seconds=60.0)
    power = tick(floor, 60 + watts * busy, busy, seconds=60.0)
    assert 30 < power.least < 60 < power.most < 80
    load = floor.loads[P0]
    assert load.least < power.least
    assert load.most > power.most
    restored = make_floor()
    restored.restore(P0, [], (load.least, load.most), floor.fits[P0].sums)
    again = tick(restored, 200.0, 16.0)
    assert (again.least, again.most) == (power.least, power.most)


def test_a_contradiction_starts_anew() -> None:
    floor = make_floor()
    for busy in (16.0, 8.0, 0.5):
        tick(floor, 60.0 + 4 * busy, busy)
    changed = tick(floor, 20.0 + 4 * 0.5, 0.5)
    assert changed.least == 0.0
    assert 22.0 <= changed.most < 22.5


def test_what_was_learned_has_an_error() -> None:
    floor = make_floor()
    learn(floor, 50.0, LEAST_WINDOWS)
    power = tick(floor, 60.0, 2.0)
    assert power.is_known
    assert 47.5 <= power.least <= power.watts <= power.most <= 52.5


def test_a_card_is_bounded_by_its_lowest_power() -> None:
    floor = make_floor()
    tick(floor, 300.0, domain=CARD)
    power = tick(floor, 400.0, domain=CARD)
    assert (power.least, power.is_known) == (0.0, False)
    assert 300.0 <= power.most <= 303.0


@given(
    st.floats(1.0, 500.0),
    st.lists(st.tuples(st.floats(0.0, 16.0), st.floats(1.0, 2.0)), min_size=1, max_size=40),
    st.floats(0.1, 30.0),
)
def test_the_truth_is_within_while_the_assumption_holds(
    idle: float, windows: list[tuple[float, float]], watts: float
) -> None:
    """Watts of a busy cpu differ at most twofold between windows."""
    load = LoadBounds()
    for busy, factor in windows:
        load.add(idle + watts * factor * busy, busy, CPUS, 2.0)
        assert load.least <= idle <= load.most


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e4)), min_size=1, max_size=40))
def test_no_reading_makes_impossible_bounds(windows: list[tuple[float, float]]) -> None:
    load = LoadBounds()
    assume(windows[0][0] > 0)
    for power, busy in windows:
        load.add(power, busy, CPUS, 2.0)
        assert 0 <= load.least <= load.most
        assert math.isfinite(load.least)
