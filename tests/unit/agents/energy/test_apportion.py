"""energy: amounts are divided without losing a microjoule."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccagent.agents.energy.splitting import apportion

AMOUNTS = st.integers(0, 10**15)
WEIGHTS = st.dictionaries(st.integers(-2, 50), st.integers(0, 10**12), min_size=1, max_size=20)


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
