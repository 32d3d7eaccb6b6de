"""Division of an amount into integers with an exact sum: the method of largest remainders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def apportion(amount: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide an amount in proportion to weights; the sum of the parts is the amount.

    Each part is the exact quotient, rounded down or up. Of equal remainders the smaller key gets
    more, so the order of the weights is irrelevant. Raise ValueError if all weights are 0, or if a
    weight or the amount is negative.
    """
    whole = sum(weights.values())
    if whole <= 0 or amount < 0 or min(weights.values()) < 0:
        raise ValueError(f"cannot divide {amount} by weights whose sum is {whole}")
    parts: dict[int, int] = {}
    remainders: list[tuple[int, int]] = []
    for key, weight in weights.items():
        parts[key], remainder = divmod(amount * weight, whole)
        remainders.append((-remainder, key))
    missing = amount - sum(parts.values())
    for _, key in sorted(remainders)[:missing]:
        parts[key] += 1
    return parts
