"""energy: an APU's power counts once, and is split between its cores and its GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.apus import ApuSockets, join_apus, use_of_apu
from ccagent.agents.energy.splitting import DomainClaim, DomainUse
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.records.envelopes import SampleGpu
from tests.support.card_model import KINDS, CardKind, CardMachine
from tests.support.energy_tree import EnergyNode

CARD, SOCKET = EnergyDomain("card", 4), EnergyDomain("package", 1)
OTHER = EnergyDomain("package", 0)
BY_SMI = MeasuredEnergy(500, 10.0, "gpu")
BY_RAPL = MeasuredEnergy(480, 10.0, "rapl", is_estimate=True)
LOST = MeasuredEnergy(0, 0.0, "gpu", flaw="it could not be read")


def test_apus_are_found_by_their_pci_device(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    for bus, device in (("01", "0x74a0"), ("02", "0x74a1"), ("03", "0x74a0")):
        node.write(f"sys/bus/pci/devices/0000:{bus}:00.0/device", f"{device}\n")
    node.write("sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n")
    node.write("sys/devices/system/node/node1/cpulist", "4-7\n")
    reading = GpuReading(
        cards=[SampleGpu(index=index, uuid="") for index in range(4)],
        addresses={index: f"00000000:0{index + 1}:00.0" for index in range(4)},
    )
    assert ApuSockets().find(node, reading) == {1: 0}


@pytest.mark.parametrize(
    ("by_smi", "by_rapl", "expected"),
    [
        (BY_SMI, BY_RAPL, BY_SMI),
        (BY_SMI, None, BY_SMI),
        (LOST, BY_RAPL, BY_RAPL),
        (None, BY_RAPL, BY_RAPL),
        (LOST, None, LOST),
    ],
)
def test_an_apu_counts_once(
    by_smi: MeasuredEnergy | None, by_rapl: MeasuredEnergy | None, expected: MeasuredEnergy
) -> None:
    measured = {OTHER: BY_RAPL}
    measured |= {CARD: by_smi} if by_smi else {}
    measured |= {SOCKET: by_rapl} if by_rapl else {}
    assert join_apus(measured, {1: 4}) == {OTHER: BY_RAPL, SOCKET: expected}


def test_the_power_of_the_gpu_is_bounded_by_assumption() -> None:
    cores = DomainUse({1: DomainClaim(0, 40, 0, 0), 2: DomainClaim(80, 40, 80, 80)}, 80, 80, 8)
    card = DomainUse({1: DomainClaim(1, 10, 1, 1)}, 1, 10)
    use = use_of_apu(cores, card, 0.5)
    assert (use.busy, use.held) == (1_000_000, 1_000_000)
    # All cores are busy, the GPU half of the time: 2 to 1, between 0.5 to 1 and 8 to 1.
    assert use.claims[1] == DomainClaim(666_667, 750_000, 333_333, 888_889)
    assert use.claims[2].busy == 333_333
    unknown = use_of_apu(cores, card, None).claims[1]
    assert (unknown.least, unknown.most) == (0, 1_000_000)


def test_an_idle_gpu_has_no_part_in_the_active_power() -> None:
    cores = DomainUse({1: DomainClaim(30, 40, 20, 40)}, 40, 80, 8)
    for card in (DomainUse({}, 0, 1), DomainUse({1: DomainClaim(1, 10, 1, 1)}, 1, 10)):
        claim = use_of_apu(cores, card, 0.0).claims[1]
        assert (claim.busy, claim.least, claim.most) == (750_000, 500_000, 1_000_000)
    assert use_of_apu(cores._replace(claims={}, busy=0), DomainUse({}, 0, 1), 0.0).busy == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_truth_is_in_the_interval_and_no_busy_job_at_0(
    tmp_path: Path, kind: CardKind, seed: int
) -> None:
    machine = CardMachine(tmp_path, kind, seed)
    accounts = machine.run(20)
    for number, true in machine.truth.items():
        account = accounts[number]
        least, most = account.interval(0.0, 0.0)
        assert least <= true <= most
        assert account.active + account.idle > 0
        assert account.coverage == 1.0
    booked = sum(account.active + account.idle for account in accounts.values())
    measured = sum(sum(tick.joules.values()) for tick in machine.ticks)
    assert booked / 1e6 <= measured + 0.1
