"""A maker of cards by somebody else, installed beside ccagent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ccagent.agents.sonar.agent import SampleSettings
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError
from tests.support.gpu_machine import Machine

CODE = """
from ccagent.machine.gpu.vendor import (
    Card, CardDescription, CardState, GpuVendor, ProcessOnCard, VendorReading,
)
from ccagent.records.envelopes import SampleGpu, SysinfoGpuCard

CARD = Card(index=0, address="00000000:17:00.0")

class Abacus(GpuVendor):
    title = "Abacus"
    directories = ("sys/bus/pci/drivers/abacus",)

    def open(self):
        print("noise on standard output")

    def describe(self):
        description = SysinfoGpuCard(index=0, uuid="", manufacturer="Abacus", model="Ten rows")
        return [CardDescription(card=CARD, description=description)]

    def read(self):
        state = SampleGpu(index=0, uuid="abacus-1", ce_util=5)
        process = ProcessOnCard(pid=1000, card=0, utilization=5.0)
        return VendorReading(cards=[CardState(card=CARD, state=state)], processes=[process])

    def close(self):
        pass
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with a maker."""
    directory = tmp_path / "others"
    metadata = directory / "others-1.0.dist-info"
    metadata.mkdir(parents=True)
    (directory / "abacus_gpus.py").write_text(CODE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ccagent.gpus]\nabacus = abacus_gpus:Abacus\n")
    monkeypatch.setattr(sys, "path", [str(directory), *sys.path])


@pytest.mark.usefixtures("others")
def test_its_cards_are_cards(machine: Machine) -> None:
    machine.cards("abacus", ["0000:17:00.0"])
    machine.node.process(1000)
    assert "gpus" not in machine.sample()["system"]
    vendors = ("nvidia", "abacus")
    assert machine.gpus(gpu_vendors=vendors) == [{"index": 0, "uuid": "abacus-1", "ce_util": 5}]
    (used,) = machine.processes(gpu_vendors=vendors)[1000]
    assert used == {"index": 0, "uuid": "abacus-1", "gpu_util": 5.0}
    (card,) = machine.described(gpu_vendors=vendors)
    assert len(card.pop("uuid")) == len("e42e5f05-f160-55e1-b178-d3d340f3423c")
    assert card == {
        "index": 0,
        "address": "00000000:17:00.0",
        "manufacturer": "Abacus",
        "model": "Ten rows",
    }


def test_an_unknown_maker_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert({"gpu-vendors": ["nvida"]}, SampleSettings, "agents.sample", place="x.toml")
    assert str(caught.value) == (
        "x.toml: agents.sample: gpu-vendors: 'nvida' is an unknown GPU vendor; "
        "did you mean 'nvidia'?"
    )
