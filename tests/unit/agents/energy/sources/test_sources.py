"""energy: of several sources that measure the same, one counts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from ccagent.agents.energy.accounts import NODE_METER, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources import EnergySource, Measured, Sources, choose_domains
from ccagent.errors import NotHereError, NotPermittedError
from ccagent.machine.node import Node
from tests.support.energy_tree import EnergyNode

P0, P1, ALL = EnergyDomain("package", 0), EnergyDomain("package", 1), EnergyDomain("package", -1)


def energy(source: str, flaw: str = "") -> MeasuredEnergy:
    return MeasuredEnergy(1, 1.0, source, flaw=flaw)


def names(chosen: Measured) -> dict[EnergyDomain, str]:
    return {domain: each.source for domain, each in chosen.items()}


def test_two_sources_of_a_kind_are_never_added() -> None:
    rapl = {P0: energy("rapl"), P1: energy("rapl")}
    cray = {ALL: energy("cray"), NODE_METER: energy("cray")}
    assert names(choose_domains([rapl, cray])) == {P0: "rapl", P1: "rapl", NODE_METER: "cray"}


@pytest.mark.parametrize(
    ("rapl", "cray", "expected"),
    [
        ({P0: energy("r"), P1: energy("r", "gap")}, {ALL: energy("c")}, {ALL: "c"}),
        ({P0: energy("r"), P1: energy("r", "gap")}, {}, {P0: "r", P1: "r"}),
        ({P0: energy("r"), P1: energy("r", "x")}, {ALL: energy("c", "x")}, {P0: "r", P1: "r"}),
        ({P0: energy("r", "x")}, {ALL: energy("c", "x")}, {P0: "r"}),
    ],
)
def test_the_one_that_knows_all_is_preferred(
    rapl: Measured, cray: Measured, expected: dict[EnergyDomain, str]
) -> None:
    assert names(choose_domains([rapl, cray])) == expected


class Scripted(EnergySource):
    """A source that answers what the test says."""

    name: ClassVar[str] = "scripted"

    def __init__(self, answer: Measured | Exception) -> None:
        super().__init__()
        self.answer = answer

    def read(self, node: Node) -> Measured:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_what_fails_costs_its_source(tmp_path: Path) -> None:
    class Other(Scripted):
        name = "other"

    class Third(Scripted):
        name = "third"

    refused, none = NotPermittedError("refused"), NotHereError("none")
    sources = Sources([Scripted(refused), Other(none), Third({P0: energy("t")})])
    found = sources.read(EnergyNode(tmp_path))
    assert found.errors == ["scripted: refused"]
    assert found.absent == {"other": "none"}
    assert names(found.measured) == {P0: "t"}
    sources.close()
