"""Energy domains, and accounts in microjoules: of jobs, and of the node with its other parts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ccagent.machine.job_energy import EnergyInterval

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
