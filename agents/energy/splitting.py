"""Split of the energy of a domain in a tick between jobs, system and unallocated; idle power.

The sum is a measurement. The split between jobs on a shared socket is a convention: active energy
is proportional to CPU time, idle energy to the allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.energy.accounts import DomainKind, EnergyDomain

SYSTEM = -1
"""Key of the processes outside of jobs."""

UNALLOCATED = -2
"""Key of the unallocated part."""

WINDOW = 60.0
"""Seconds without a job that form an idle window."""

LEAST_WINDOWS = 3
MOST_WINDOWS = 200
_MOST_DOMAINS = 1000
_QUANTILE = 0.05


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


class IdleFloor:
    """Learns the idle power of each domain: the 5 % quantile of means over idle windows.

    The windows are of the idle node; idle power is never the minimum under load.
    configured: watts by kind of domain; these are not learned.
    """

    def __init__(self, configured: Mapping[DomainKind, float]) -> None:
        self._configured = dict(configured)
        self.windows: dict[EnergyDomain, list[float]] = {}
        self._open: dict[EnergyDomain, tuple[int, float]] = {}

    def add(self, domain: EnergyDomain, energy: int, seconds: float, *, is_idle: bool) -> None:
        """Add the uJ of a tick. A busy tick ends the window."""
        if not is_idle:
            self._open.pop(domain, None)
            return
        if domain not in self._open and len(self._open) >= _MOST_DOMAINS:
            return
        before = self._open.get(domain, (0, 0.0))
        energy, seconds = before[0] + energy, before[1] + seconds
        if seconds < WINDOW:
            self._open[domain] = energy, seconds
            return
        self._open.pop(domain, None)
        known = self.windows.setdefault(domain, [])
        known.append(energy / 1e6 / seconds)
        del known[:-MOST_WINDOWS]

    def watts(self, domain: EnergyDomain) -> float | None:
        """Return the idle power in W; None while it is unknown."""
        configured = self._configured.get(domain.kind, 0.0)
        if configured > 0:
            return configured
        known = self.windows.get(domain, [])
        if len(known) < LEAST_WINDOWS:
            return None
        return sorted(known)[int(_QUANTILE * len(known))]
