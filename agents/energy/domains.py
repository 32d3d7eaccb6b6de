"""Domains: the parts of a node whose energy is measured together."""

from __future__ import annotations

from typing import Literal, NamedTuple

DomainKind = Literal["package", "dram", "card", "board", "node"]
"""package: processor of a socket. dram: memory of a socket, not part of its package. card: a GPU.
board: a rail besides these, such as SysIO on Grace. node: all of it, at its input."""

EnergyPart = Literal["cpu", "memory", "gpu", "other"]

PARTS: tuple[EnergyPart, ...] = ("cpu", "memory", "gpu", "other")

PART_OF: dict[DomainKind, EnergyPart] = {
    "package": "cpu",
    "dram": "memory",
    "card": "gpu",
    "board": "other",
    "node": "other",
}
"""The part that the energy of a domain counts as; of a node, what its other domains lack."""


class EnergyDomain(NamedTuple):
    """A domain. number: of the socket or card; 0 of the node."""

    kind: DomainKind
    number: int = 0

    def __str__(self) -> str:
        """Return its name for people."""
        return "node" if self.kind == "node" else f"{self.kind} {self.number}"


NODE_METER = EnergyDomain("node")


class MeasuredEnergy(NamedTuple):
    """Energy of a domain in a tick.

    energy: uJ. seconds: of the tick by this source. source: its name. is_estimate: integrated from
    power, or computed by a model, and not counted. flaw: why the energy is unknown, empty if it is
    known.
    """

    energy: int
    seconds: float
    source: str
    is_estimate: bool = False
    flaw: str = ""
