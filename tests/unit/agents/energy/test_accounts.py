"""energy: the split of a domain, its invariants, and the bounds of what a job truly used."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import (
    SYSTEM,
    UNALLOCATED,
    DomainClaim,
    DomainSplit,
    DomainUse,
    IdleEnergy,
    apportion,
)
from ccagent.agents.energy.accounts import split_domain as split_between

ENERGIES = st.integers(0, 10**12)
AMOUNTS = st.integers(0, 10**15)
WEIGHTS = st.dictionaries(st.integers(-2, 50), st.integers(0, 10**12), min_size=1, max_size=20)


def make_claim(busy: int, held: int, less: int, more: int) -> DomainClaim:
    return DomainClaim(busy, held, max(0, busy - less), busy + more)


CLAIMS = st.builds(
    make_claim,
    st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 100), st.integers(0, 100),
)  # fmt: skip

USES = st.builds(
    DomainUse,
    st.dictionaries(st.integers(1, 40), CLAIMS, max_size=8),
    st.integers(0, 10**10),
    st.integers(0, 10**10),
)


def split_domain(energy: int, idle: int, use: DomainUse) -> DomainSplit:
    """Split with a known idle energy; watts per CPU second differ at most twofold."""
    return split_between(energy, IdleEnergy(idle, idle, idle), use, 2.0)


def total(split: DomainSplit) -> int:
    return sum(split.active.values()) + sum(split.idle.values())


@given(ENERGIES, ENERGIES, USES)
def test_nothing_is_lost_and_nothing_is_negative(energy: int, idle: int, use: DomainUse) -> None:
    split = split_domain(energy, idle, use)
    assert total(split) == energy
    assert all(part >= 0 for part in [*split.active.values(), *split.idle.values()])
    for job, least in split.least.items():
        own = split.active.get(job, 0) + split.idle.get(job, 0)
        assert 0 <= least <= own <= split.most[job] <= energy + 1


@given(ENERGIES, ENERGIES, USES)
def test_a_job_that_did_nothing_has_no_active_energy(
    energy: int, idle: int, use: DomainUse
) -> None:
    claims = {**use.claims, 99: DomainClaim(0, 5, 0, 0)}
    split = split_domain(energy, idle, use._replace(claims=claims))
    assert split.active.get(99, 0) == 0
    assert abs(split.most[99] - split.least[99]) <= 2


@given(ENERGIES, ENERGIES, USES, st.randoms(use_true_random=False))
def test_the_order_of_jobs_is_irrelevant(
    energy: int, idle: int, use: DomainUse, chance: random.Random
) -> None:
    shuffled = list(use.claims.items())
    chance.shuffle(shuffled)
    assert split_domain(energy, idle, use._replace(claims=dict(shuffled))) == (
        split_domain(energy, idle, use)
    )


@given(ENERGIES, ENERGIES, USES)
def test_halves_of_a_tick_make_up_the_whole_but_for_rounding(
    energy: int, idle: int, use: DomainUse
) -> None:
    whole = split_domain(2 * energy, 2 * idle, use)
    half = split_domain(energy, idle, use)
    for twice, once in ((whole.active, half.active), (whole.idle, half.idle)):
        assert twice.keys() == once.keys()
        assert all(abs(twice[key] - 2 * once[key]) <= 2 for key in twice)


@given(ENERGIES, st.integers(1, 10**9))
def test_a_job_with_everything_gets_everything_but_the_systems(energy: int, busy: int) -> None:
    use = DomainUse({7: DomainClaim(busy, 100, busy, busy)}, busy, 100)
    split = split_domain(energy, energy // 3, use)
    assert split.active.get(7, 0) + split.idle.get(7, 0) == energy
    with_system = split_domain(energy, energy // 3, use._replace(busy=2 * busy))
    assert with_system.active.get(7, 0) + with_system.active.get(SYSTEM, 0) == (
        energy - sum(with_system.idle.values())
    )
    assert with_system.idle.get(UNALLOCATED, 0) == 0


def test_where_nothing_ran_all_energy_is_idle() -> None:
    use = DomainUse({1: DomainClaim(0, 25, 0, 0)}, 0, 100)
    split = split_domain(1000, 0, use)
    assert split == DomainSplit({}, {1: 250, UNALLOCATED: 750}, {1: 250}, {1: 250})


def test_an_idle_floor_above_the_energy_leaves_nothing_active() -> None:
    use = DomainUse({1: DomainClaim(10, 50, 10, 10)}, 20, 100)
    split = split_domain(1000, 5000, use)
    assert split.active == {}
    assert split.idle == {1: 500, UNALLOCATED: 500}


def test_a_domain_of_which_nothing_can_be_held_is_nobodys() -> None:
    assert split_domain(10, 10, DomainUse({}, 0, 0)).idle == {UNALLOCATED: 10}


def test_the_bounds_are_those_of_the_formula() -> None:
    for share, least, most in ((50, 1 / 3, 2 / 3), (95, 0.9048, 0.9744), (100, 1, 1)):
        use = DomainUse({1: DomainClaim(share, 0, share, share)}, 100, 100)
        split = split_domain(10**9, 0, use)
        assert abs(split.least[1] / 1e9 - least) < 1e-4
        assert abs(split.most[1] / 1e9 - most) < 1e-4


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(10, 20)), min_size=1, max_size=8),
    st.integers(0, 10**6),
)
def test_the_truth_lies_between_the_bounds(jobs: list[tuple[int, int]], system: int) -> None:
    """Watts per CPU second are 10 to 20, so they differ at most twofold; the system's are 15."""
    claims = {n: DomainClaim(busy, 0, busy, busy) for n, (busy, _) in enumerate(jobs)}
    use = DomainUse(claims, sum(busy for busy, _ in jobs) + system, 0)
    energy = sum(busy * watts for busy, watts in jobs) + system * 15
    split = split_domain(energy, 0, use)
    for number, (busy, watts) in enumerate(jobs):
        assert split.least[number] - 1 <= Fraction(busy * watts) <= split.most[number] + 1


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(10, 20)), min_size=1, max_size=8),
    st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 10**8),
)  # fmt: skip
def test_the_truth_lies_between_the_bounds_of_the_idle_energy(
    jobs: list[tuple[int, int]], idle: int, less: int, more: int
) -> None:
    """The true idle energy is anywhere in its bounds; jobs hold equal parts."""
    parts = len(jobs) + 1
    claims = {n: DomainClaim(busy, 1, busy, busy) for n, (busy, _) in enumerate(jobs)}
    energy = idle + sum(busy * watts for busy, watts in jobs)
    bounds = IdleEnergy(max(0, idle - less), max(0, idle - less // 2), idle + more)
    split = split_between(energy, bounds, DomainUse(claims, 0, parts), 2.0)
    for number, (busy, watts) in enumerate(jobs):
        truth = Fraction(idle, parts) + busy * watts
        assert split.least[number] - 1 <= truth <= split.most[number] + 1


@given(AMOUNTS, WEIGHTS)
def test_the_parts_make_up_the_amount(amount: int, weights: dict[int, int]) -> None:
    assume(any(weights.values()))
    parts = apportion(amount, weights)
    assert sum(parts.values()) == amount
    assert min(parts.values()) >= 0
    whole = sum(weights.values())
    for key, part in parts.items():
        assert abs(part * whole - amount * weights[key]) < whole


@given(AMOUNTS, WEIGHTS, st.randoms(use_true_random=False))
def test_the_order_is_irrelevant(
    amount: int, weights: dict[int, int], chance: random.Random
) -> None:
    assume(any(weights.values()))
    shuffled = list(weights.items())
    chance.shuffle(shuffled)
    assert apportion(amount, dict(shuffled)) == apportion(amount, weights)


def test_a_weight_of_0_gets_nothing() -> None:
    assert apportion(7, {1: 0, 2: 3, 3: 0}) == {1: 0, 2: 7, 3: 0}


def test_equal_remainders_go_to_the_smaller_keys() -> None:
    assert apportion(2, {3: 1, 2: 1, 1: 1}) == {1: 1, 2: 1, 3: 0}


@pytest.mark.parametrize(("amount", "weights"), [(1, {1: 0}), (-1, {1: 1}), (1, {1: 2, 2: -1})])
def test_what_cannot_be_divided(amount: int, weights: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot divide"):
        apportion(amount, weights)
