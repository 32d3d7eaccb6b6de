"""Split of the energy of a domain in a tick between jobs, system and unallocated.

The sum is a measurement. The split between jobs on a shared socket is a convention: active energy
is proportional to CPU time, idle energy to the allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.energy.split.apportion import apportion

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = -1
"""Key of the processes outside of jobs."""
UNALLOCATED = -2
"""Key of the unallocated part."""


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
    """

    claims: Mapping[int, DomainClaim]
    busy: int
    held: int


class DomainSplit(NamedTuple):
    """Energy in uJ by job, SYSTEM and UNALLOCATED.

    least, most: bounds of the active energy by job, if watts per CPU second in the domain differ at
    most by the assumed ratio.
    """

    active: dict[int, int]
    idle: dict[int, int]
    least: dict[int, int]
    most: dict[int, int]


def split_domain(energy: int, idle: int, use: DomainUse, ratio: tuple[int, int]) -> DomainSplit:
    """Split energy in uJ. idle: uJ of the idle domain.

    The sums of `active` and `idle` together are exactly the energy. ratio: numerator and
    denominator of the assumed ratio, at least 1.
    """
    idle = max(0, min(idle, energy))
    active = energy - idle
    claims = use.claims
    if not use.busy and not any(claim.busy for claim in claims.values()):
        # The domain was idle: all energy is idle energy.
        idle, active = energy, 0
    shares: dict[int, int] = {}
    least: dict[int, int] = {}
    most: dict[int, int] = {}
    if active:
        weights = {job: claim.busy for job, claim in claims.items()}
        whole = max(use.busy, sum(weights.values()))
        weights[SYSTEM] = whole - sum(weights.values())
        shares = apportion(active, weights)
        for job, claim in claims.items():
            low, high = bounds(active, claim, whole, ratio)
            least[job], most[job] = min(low, shares[job]), max(high, shares[job])
    return DomainSplit(shares, split_held(idle, use), least, most)


def split_held(energy: int, use: DomainUse) -> dict[int, int]:
    """Split energy by allocation; the rest is UNALLOCATED. The sum is exact."""
    if not energy:
        return {}
    weights = {job: claim.held for job, claim in use.claims.items()}
    weights[UNALLOCATED] = max(0, use.held - sum(weights.values()))
    if not any(weights.values()):
        weights[UNALLOCATED] = 1
    return apportion(energy, weights)


def bounds(active: int, claim: DomainClaim, busy: int, ratio: tuple[int, int]) -> tuple[int, int]:
    """Return the bounds of the true active energy of a job.

    Let x be the job's share of the busy time, and let watts per CPU second differ at most r-fold
    from those of the rest. Then its share of the energy is between x / (x + r (1 - x)) and r x / (r
    x + 1 - x).
    """
    r, unit = ratio
    low, high = min(claim.least, busy), min(claim.most, busy)
    below = low * unit + r * (busy - low)
    above = high * r + unit * (busy - high)
    least = active * low * unit // below if below else 0
    most = -(-active * high * r // above) if above else 0
    return least, most
