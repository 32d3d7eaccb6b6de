"""energy: cards that come and go, without a vendor's library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ccagent.agents.energy import cards
from ccagent.agents.energy.cards import CardSource
from ccagent.machine.gpu import gpus
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.machine.gpu.vendor import Detail
from ccagent.records.envelopes import SampleGpu
from tests.support.energy_tree import EnergyNode, make_settings


class ListedCards:
    """Stands in for the libraries: cards by UUID, with their counters in J."""

    counters: ClassVar[dict[str, int]] = {}

    def __init__(self, *_: object) -> None:
        pass

    def ask(self, question: str, details: Sequence[str]) -> None:
        assert (question, details) == ("read", ["energy"])

    def reading(self, errors: list[str]) -> GpuReading:
        assert not errors
        return GpuReading(
            cards=[SampleGpu(index=n, uuid=uuid) for n, uuid in enumerate(self.counters)],
            details={
                n: [Detail("energy", joules * 1000)]
                for n, joules in enumerate(self.counters.values())
            },
        )


def test_a_card_that_falls_off_the_bus_costs_no_other_its_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_present(*_: object) -> bool:
        return True

    monkeypatch.setattr(cards, "is_any_present", is_present)
    monkeypatch.setattr(gpus, "Gpus", ListedCards)
    node, source = EnergyNode(tmp_path), CardSource(make_settings())

    def tick(**counters: int) -> dict[int, int | str]:
        node.still.sleep(10)
        monkeypatch.setattr(ListedCards, "counters", counters)
        source.prepare_reading(node)
        found = source.read(node)
        return {domain.number: each.flaw or each.energy for domain, each in found.items()}

    tick(a=100, b=1000, c=1010)
    assert tick(a=101, b=1001, c=1011) == {0: 10**6, 1: 10**6, 2: 10**6}
    # c is card 1 now, and has another counter than b had.
    assert tick(a=102, c=1012) == {0: 10**6, 1: "it was read for the first time"}
    assert tick(a=103, c=1014) == {0: 10**6, 1: 2 * 10**6}
    assert tick() == {0: "it could not be read", 1: "it could not be read"}
