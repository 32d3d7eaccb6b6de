"""Energy domains, the split of a domain's energy in a tick, and accounts in microjoules.

The sum is a measurement. The split between jobs on a shared socket is a convention: active energy
is proportional to CPU time, idle energy to the allocation. Accounts are of jobs, and of the node
with its other parts.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.machine.job_energy import EnergyInterval

if TYPE_CHECKING:
    from collections.abc import Mapping

DomainKind = Literal["package", "dram", "card", "board", "node"]
"""package: processor of a socket. dram: memory of a socket, not part of its package. card: a GPU.
board: another rail, such as SysIO on Grace. node: the whole node, measured at its input.
"""

EnergyPart = Literal["cpu", "memory", "gpu", "other"]
PARTS: tuple[EnergyPart, ...] = ("cpu", "memory", "gpu", "other")

PART_OF: dict[DomainKind, EnergyPart] = {
    "package": "cpu",
    "dram": "memory",
    "card": "gpu",
    "board": "other",
    "node": "other",
}
"""Part of the energy of each kind of domain. For a node it is the rest beyond other domains."""

EnergyShare = Literal["active", "idle"]
EnergyKey = tuple[EnergyPart, EnergyShare]
KEYS: tuple[EnergyKey, ...] = tuple((part, share) for part in PARTS for share in ("active", "idle"))
NAMES = {(part, share): f"{part} {share}" for part, share in KEYS}
"""Keys of `JobAccount.energy`."""

SYSTEM = -1
"""Key of the processes outside of jobs."""

UNALLOCATED = -2
"""Key of the unallocated part."""


class EnergyDomain(NamedTuple):
    """A domain. number: number of the socket or card; 0 for the node."""

    kind: DomainKind
    number: int = 0

    def __str__(self) -> str:
        """Return the name for display."""
        return "node" if self.kind == "node" else f"{self.kind} {self.number}"


NODE_METER = EnergyDomain("node")


class MeasuredEnergy(NamedTuple):
    """Energy of a domain in a tick.

    energy: uJ. seconds: length of the tick by this source. source: name of the source. is_estimate:
    integrated from power or computed by a model instead of counted. flaw: reason for an unknown
    energy, empty if known.
    """

    energy: int
    seconds: float
    source: str
    is_estimate: bool = False
    flaw: str = ""


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


class JobAccount(msgspec.Struct, kw_only=True):
    """Energy of a job on this node.

    first, last: seconds since 1970 of the first and last tick. seconds: observed time in us.
    covered: us weighted by the share of the job's domains with valid readings. exclusive: us alone
    on its sockets. energy: uJ by part and share. counted: uJ measured by counters instead of
    estimates. least, most: bounds of the uJ. memory_least, memory_most: of the memory. of_parts,
    of_node: uJ of all domains and of the node while the job ran. power: uW in the last tick, None
    if unknown. methods: sources by part.
    """

    job: int
    user: str = ""
    first: float = 0.0
    last: float = 0.0
    seconds: int = 0
    covered: int = 0
    exclusive: int = 0
    energy: dict[str, int] = {}
    counted: int = 0
    least: int = 0
    most: int = 0
    memory_least: int = 0
    memory_most: int = 0
    of_parts: int = 0
    of_node: int = 0
    power: int | None = None
    methods: dict[str, str] = {}
    is_idle_unknown: bool = False
    is_adopted: bool = False

    def add(self, key: EnergyKey, energy: int) -> None:
        """Add energy of a part and share."""
        name = NAMES[key]
        self.energy[name] = self.energy.get(name, 0) + energy

    def of(self, part: EnergyPart, share: EnergyShare) -> int:
        """Return the uJ of a part and share."""
        return self.energy.get(NAMES[part, share], 0)

    @property
    def active(self) -> int:
        """Return the active uJ of all parts."""
        return sum(self.of(part, "active") for part in PARTS)

    @property
    def idle(self) -> int:
        """Return the idle uJ of all parts."""
        return sum(self.of(part, "idle") for part in PARTS)

    @property
    def coverage(self) -> float:
        """Return the share of the job's time with valid readings, weighted by its domains."""
        return self.covered / self.seconds if self.seconds else 0.0

    @property
    def alone(self) -> float:
        """Return the share of the job's time in which it was alone on its sockets."""
        return self.exclusive / self.seconds if self.seconds else 0.0

    @property
    def measured(self) -> float | None:
        """Return the measured parts' share of the node's energy; None without a node meter."""
        return min(1.0, self.of_parts / self.of_node) if self.of_node else None

    @property
    def method(self) -> str:
        """Return the method, `rapl+gpu/cpu-time`, with `idle=unknown` if idle power is unknown."""
        sources = "+".join(dict.fromkeys(self.methods.get(part, "") for part in PARTS if
                                         self.methods.get(part)))  # fmt: skip
        text = f"{sources or 'none'}/cpu-time"
        return f"{text} idle=unknown" if self.is_idle_unknown else text

    def interval(self, counter_error: float, estimate_error: float) -> EnergyInterval:
        """Return the interval from the bounds of the split and the error of the sensors.

        counter_error, estimate_error: relative errors of counters and of estimates.
        """
        error = self._error(counter_error, estimate_error)
        return EnergyInterval(self.least * (1 - error) / 1e6, self.most * (1 + error) / 1e6)

    def memory_interval(self, counter_error: float, estimate_error: float) -> EnergyInterval:
        """Return the interval of the energy of the memory."""
        error = self._error(counter_error, estimate_error)
        return EnergyInterval(
            self.memory_least * (1 - error) / 1e6, self.memory_most * (1 + error) / 1e6
        )

    def _error(self, counter_error: float, estimate_error: float) -> float:
        whole = sum(self.energy.values())
        counted = min(1.0, self.counted / whole) if whole else 0.0
        return counted * counter_error + (1 - counted) * estimate_error


class NodeAccount(msgspec.Struct, kw_only=True):
    """Energy of the node: uJ by part; `system` and `unallocated` are included in the parts.

    carried: uJ carried over to the next tick, because the meters are not read simultaneously.
    """

    energy: dict[str, int] = {}
    system: dict[str, int] = {}
    unallocated: dict[str, int] = {}
    carried: int = 0

    def add(self, part: EnergyPart, whole: int, system: int, unallocated: int) -> None:
        """Add the energy of a domain."""
        for account, energy in (
            (self.energy, whole), (self.system, system), (self.unallocated, unallocated),
        ):  # fmt: skip
            account[part] = account.get(part, 0) + energy
