"""Split of the energy of a domain in a tick between jobs, system and unallocated.

The sum is a measurement. The split between jobs on a shared socket is a convention: active energy
is proportional to CPU time, idle energy to the allocation.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = -1
"""Key of the processes outside of jobs."""

UNALLOCATED = -2
"""Key of the unallocated part."""


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


class DomainClaim(NamedTuple):
    """Use of a domain by a job in a tick.

    busy: CPU time in the domain in us; for a card a share of the activity. held: allocation of the
    job, in units of `DomainUse.held`. least, most: bounds of `busy` if the location of the job's
    threads is unknown.
    """

    busy: int
    held: int
    least: int
    most: int


class DomainUse(NamedTuple):
    """Use of a domain in a tick.

    claims: by job. busy: CPU time of all processes, including `system`. held: total to allocate.
    cpus: number of cpus of the domain; 0 for a card.
    """

    claims: Mapping[int, DomainClaim]
    busy: int
    held: int
    cpus: int = 0


class IdleEnergy(NamedTuple):
    """Idle energy of a domain in a tick in uJ, with bounds."""

    least: int
    energy: int
    most: int


class DomainSplit(NamedTuple):
    """Energy in uJ by job, SYSTEM and UNALLOCATED.

    least, most: bounds of the active and idle energy by job, if watts per CPU second in the domain
    differ at most by the assumed ratio, and the idle energy is within its bounds.
    """

    active: dict[int, int]
    idle: dict[int, int]
    least: dict[int, int]
    most: dict[int, int]


def split_domain(energy: int, idle: IdleEnergy, use: DomainUse, ratio: float) -> DomainSplit:
    """Split energy in uJ. ratio: assumed ratio of watts per CPU second, at least 1.

    The sums of `active` and `idle` together are exactly the energy.
    """
    claims = use.claims
    if not use.busy and not any(claim.busy for claim in claims.values()):
        return split_idle(energy, use)
    least, middle, most = (max(0, min(each, energy)) for each in idle)
    active = energy - middle
    weights = {job: claim.busy for job, claim in claims.items()}
    own = sum(weights.values())
    whole = max(use.busy, own)
    shares: dict[int, int] = {}
    if active:
        weights[SYSTEM] = whole - own
        shares = apportion(active, weights)
    held = split_held(middle, use)
    to_hold = max(1, use.held, sum(claim.held for claim in claims.values()))
    lowest: dict[int, int] = {}
    highest: dict[int, int] = {}
    for job, claim in claims.items():
        low, high = bounds(claim, whole, ratio)
        part = claim.held / to_hold
        own = shares.get(job, 0) + held.get(job, 0)
        # The energy is linear in the idle energy, so its extremes are at the bounds.
        lowest[job] = min(own, int(energy * low + (part - low) * (least if part > low else most)))
        highest[job] = max(
            own, ceil(energy * high + (part - high) * (most if part > high else least))
        )
    return DomainSplit(shares, held, lowest, highest)


def split_idle(energy: int, use: DomainUse) -> DomainSplit:
    """Split the energy of an idle domain, or of one that no job can influence."""
    held = split_held(energy, use)
    own = {job: held.get(job, 0) for job in use.claims}
    return DomainSplit({}, held, own, own)


def split_held(energy: int, use: DomainUse) -> dict[int, int]:
    """Split energy by allocation; the rest is UNALLOCATED. The sum is exact."""
    if not energy:
        return {}
    weights = {job: claim.held for job, claim in use.claims.items()}
    weights[UNALLOCATED] = max(0, use.held - sum(weights.values()))
    if not any(weights.values()):
        weights[UNALLOCATED] = 1
    return apportion(energy, weights)


def bounds(claim: DomainClaim, busy: int, ratio: float) -> tuple[float, float]:
    """Return the bounds of the job's share of the active energy.

    Let x be the job's share of the busy time, and let watts per CPU second differ at most r-fold
    from those of the rest. Then its share of the energy is between x / (x + r (1 - x)) and r x / (r
    x + 1 - x).
    """
    low, high = min(claim.least, busy), min(claim.most, busy)
    below = low + ratio * (busy - low)
    above = ratio * high + busy - high
    return (low / below if below else 0.0, ratio * high / above if above else 0.0)
