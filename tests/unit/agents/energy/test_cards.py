"""energy: who has a card, who uses it, how its energy is split; an APU's power counts once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ccagent.agents.energy import cards
from ccagent.agents.energy.accounts import (
    DomainClaim,
    DomainUse,
    EnergyDomain,
    IdleEnergy,
    MeasuredEnergy,
    split_domain,
)
from ccagent.agents.energy.cards import (
    ApuSockets,
    CardOwners,
    CardSource,
    CardUse,
    join_apus,
    make_card_use,
    use_of_apu,
)
from ccagent.machine.gpu import gpus
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.machine.gpu.vendor import Detail
from ccagent.records.envelopes import SampleGpu, SampleProcessGpu
from tests.support.card_model import KINDS, CardKind, CardMachine
from tests.support.energy_tree import EnergyNode, make_settings

SPAN = 10_000_000
SEEN = {1: SPAN, 2: SPAN, 3: SPAN // 2}
CARD, SOCKET = EnergyDomain("card", 4), EnergyDomain("package", 1)
OTHER = EnergyDomain("package", 0)
BY_SMI = MeasuredEnergy(500, 10.0, "gpu")
BY_RAPL = MeasuredEnergy(480, 10.0, "rapl", is_estimate=True)
LOST = MeasuredEnergy(0, 0.0, "gpu", flaw="it could not be read")


def process(node: EnergyNode, job: int, pid: int, environment: str) -> None:
    """Put a process into a job's control group."""
    node.write(f"{node.job_path(job)}/step_0/user/task_0/cgroup.procs", f"{pid}\n")
    for directory in ("", "/step_0", "/step_0/user"):
        node.write(f"{node.job_path(job)}{directory}/cgroup.procs", "")
    node.write(f"proc/{pid}/environ", environment + "\0")


def card(index: int, busy: int = 0) -> SampleGpu:
    return SampleGpu(index=index, uuid=f"GPU-{index}", ce_util=busy)


def on(index: int, percent: float) -> list[SampleProcessGpu]:
    return [SampleProcessGpu(index=index, uuid="", gpu_util=percent)]


def test_owners_by_environment_and_activity_by_process(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    for job, pid, environment in ((1, 100, "SLURM_JOB_GPUS=0,1"), (2, 200, "SLURM_JOB_GPUS=2")):
        node.job(job, "0-3")
        process(node, job, pid, environment)
    node.write("proc/900/cgroup", "0::/user.slice\n")
    reading = GpuReading(
        cards=[card(0, 80), card(1), card(2, 30), card(3, 5)],
        processes={100: on(0, 80.0), 200: on(2, 20.0), 900: [*on(2, 10.0), *on(3, 5.0)]},
    )
    assert CardOwners("no-scontrol", "no-squeue").read(node, reading) == {
        0: CardUse({1: 1}, {1: 800}, 0, is_busy=True),
        1: CardUse({1: 1}, {}, 0, is_busy=False),
        2: CardUse({2: 1}, {2: 200}, 100, is_busy=True),
        3: CardUse({}, {}, 50, is_busy=True),
    }


def test_instances_belong_to_their_card(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    for job, pid, uuid in ((1, 100, "MIG-a"), (2, 200, "MIG-b")):
        node.job(job, "0-3")
        process(node, job, pid, f"CUDA_VISIBLE_DEVICES={uuid}")
    reading = GpuReading(
        cards=[card(0), SampleGpu(index=1, uuid="MIG-a"), SampleGpu(index=2, uuid="MIG-b")],
        addresses={0: "A", 1: "A", 2: "A"},
        partitioned=frozenset({0}),
        instances=frozenset({1, 2}),
        processes={100: on(1, 0.0), 200: on(2, 0.0)},
    )
    found = CardOwners("no-scontrol", "no-squeue").read(node, reading)
    assert found == {0: CardUse({1: 1000, 2: 1000}, {}, 0, is_busy=True, whole=2000)}
    use = make_card_use(found[0], SEEN, SPAN)
    split = split_domain(1000, IdleEnergy(0, 0, 0), use, 2.0)
    assert split.active == {1: 500, 2: 500, -1: 0}
    assert (split.least[1], split.most[1]) == (0, 1000)  # by activity nothing is known


def test_a_card_of_one_job_is_its_own() -> None:
    use = make_card_use(CardUse({1: 1}, {}, 70, is_busy=True), SEEN, SPAN)
    assert use == DomainUse({1: DomainClaim(1, SPAN, 1, 1)}, 1, SPAN)


def test_a_shared_card_is_split_by_activity() -> None:
    use = make_card_use(CardUse({1: 1, 2: 1}, {1: 600, 2: 200}, 200, is_busy=True), SEEN, SPAN)
    split = split_domain(1000, IdleEnergy(100, 100, 100), use, 2.0)
    assert split.active == {1: 540, 2: 180, -1: 180}
    assert split.idle == {1: 50, 2: 50, -2: 0}


def test_a_card_of_nobody_is_the_systems_if_it_works() -> None:
    busy = make_card_use(CardUse({}, {}, 300, is_busy=True), SEEN, SPAN)
    assert split_domain(1000, IdleEnergy(100, 100, 100), busy, 2.0).active == {-1: 900}
    idle = make_card_use(CardUse({}, {}, 0, is_busy=False), SEEN, SPAN)
    assert split_domain(1000, IdleEnergy(0, 0, 0), idle, 2.0).idle == {-2: 1000}


def test_a_card_without_known_utilisation_is_not_taken_for_idle(tmp_path: Path) -> None:
    reading = GpuReading(
        cards=[card(0), card(1), card(2)], without_utilization=frozenset({0, 1, 2}),
        partitioned=frozenset({1}), instances=frozenset({2}), addresses={1: "B", 2: "B"},
    )  # fmt: skip
    found = CardOwners("no-scontrol", "no-squeue").read(EnergyNode(tmp_path), reading)
    assert [use.is_busy for use in found.values()] == [True, False]


def test_a_job_that_has_gone_has_no_card() -> None:
    use = make_card_use(CardUse({9: 1}, {}, 0, is_busy=False), SEEN, SPAN)
    assert use.claims == {}


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
