"""Energy domains: parts of a node with one measurement."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
