"""energy: cards through the vendors' real bindings and stand-ins for their libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.cards import CardSource
from ccagent.agents.energy.meter import EnergyMeter
from tests.support.energy_tree import EnergyNode, make_settings
from tests.support.gpu_libraries import Libraries, with_cards
from tests.support.gpu_scenarios import AMD, AMD_ADDRESSES, MIG, NVIDIA, NVIDIA_ADDRESSES

FIRST, SECOND = EnergyDomain("card", 0), EnergyDomain("card", 1)
COUNTER = "nvmlDeviceGetTotalEnergyConsumption 0 = {}"
POWER = "nvmlDeviceGetPowerUsage 1 = {}"


class Cards:
    """A node with cards and their source."""

    def __init__(self, root: Path, libraries: Libraries, vendor: str) -> None:
        self.node = EnergyNode(root)
        self.libraries = libraries
        self.source = CardSource(make_settings(**{"gpu-vendors": [vendor]}))

    def tick(self, *scenarios: str) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energies ten seconds later."""
        self.libraries.play(*scenarios)
        self.node.still.sleep(10)
        self.source.prepare_reading(self.node)
        found = self.source.read(self.node)
        assert self.source.errors == []
        return found


@pytest.fixture
def nvidia(tmp_path: Path, libraries: Libraries) -> Iterator[Cards]:
    """Two cards of NVIDIA, of which the second has no energy counter."""
    with_cards(tmp_path, "nvidia", NVIDIA_ADDRESSES)
    cards = Cards(tmp_path, libraries, "nvidia")
    yield cards
    cards.source.close()


def test_counters_are_exact_and_power_is_integrated(nvidia: Cards) -> None:
    nvidia.tick(NVIDIA, COUNTER.format(123_456_789), POWER.format(100_000))
    found = nvidia.tick(NVIDIA, COUNTER.format(123_456_789 + 5_000_001), POWER.format(200_000))
    assert found[FIRST] == MeasuredEnergy(5_000_001_000, 10.0, "gpu")
    assert found[SECOND].energy == 1_500_000_000
    assert found[SECOND].is_estimate


def test_a_reloaded_driver_costs_a_tick(nvidia: Cards) -> None:
    nvidia.tick(NVIDIA, COUNTER.format(123_456_789))
    assert nvidia.tick(NVIDIA, COUNTER.format(12))[FIRST].flaw == "the counter was reset"
    assert nvidia.tick(NVIDIA, COUNTER.format(1012))[FIRST].energy == 1_000_000


def test_a_lost_card_has_no_energy_and_comes_back(nvidia: Cards) -> None:
    nvidia.tick(NVIDIA, COUNTER.format(1000))
    lost = nvidia.tick(NVIDIA, "nvmlDeviceGetMemoryInfo_v2 0 = !15", COUNTER.format(2000))
    assert lost[FIRST].flaw == "it could not be read"
    assert nvidia.tick(NVIDIA, COUNTER.format(3000))[FIRST].flaw  # the energy of two ticks
    assert nvidia.tick(NVIDIA, COUNTER.format(4000))[FIRST].energy == 1_000_000


def test_instances_have_the_energy_of_their_card(nvidia: Cards) -> None:
    nvidia.tick(NVIDIA, MIG, COUNTER.format(1000), POWER.format(100_000))
    found = nvidia.tick(NVIDIA, MIG, COUNTER.format(9000), POWER.format(100_000))
    assert {domain: each.energy for domain, each in found.items()} == {
        FIRST: 8_000_000, SECOND: 1_000_000_000,
    }  # fmt: skip


def test_amd_names_the_unit_of_its_counter(tmp_path: Path, libraries: Libraries) -> None:
    with_cards(tmp_path, "amdgpu", AMD_ADDRESSES)
    cards = Cards(tmp_path, libraries, "amd")
    cards.tick(AMD, "amdsmi_get_energy_count 0 = 2000000 15.3")
    found = cards.tick(AMD, "amdsmi_get_energy_count 0 = 3000000 15.3")
    cards.source.close()
    assert found[FIRST].energy == 15_300_000
    assert not found[FIRST].is_estimate


def test_a_job_has_the_energy_of_its_card_and_of_one_that_it_uses(
    tmp_path: Path, libraries: Libraries
) -> None:
    node = EnergyNode(tmp_path)
    node.zones()
    node.job(7, "0-3")
    path = node.job_path(7)
    node.write(f"{path}/cgroup.procs", "1000\n")
    node.write("proc/1000/environ", "SLURM_JOB_GPUS=0\0")
    with_cards(tmp_path, "nvidia", NVIDIA_ADDRESSES)
    libraries.play(NVIDIA, COUNTER.format(1_000_000), POWER.format(50_000))
    meter = EnergyMeter(make_settings(**{"gpu-vendors": ["nvidia"], "idle-card": 60.0}))
    meter.open(node)
    libraries.play(NVIDIA, COUNTER.format(6_000_000), POWER.format(50_000))
    node.still.sleep(10)
    tick = meter.tick(node)
    meter.close()
    assert tick.totals.split[FIRST] == {7: 5_000_000_000, -1: 0, -2: 0}
    account = meter.ledger.jobs[7]
    assert account.of("gpu", "idle") == 600_000_000 + 500_000_000
    assert account.of("gpu", "active") == 4_400_000_000
    assert account.methods["gpu"] == "gpu"
    assert tick.totals.split[SECOND] == {7: 500_000_000, -1: 0, -2: 0}
