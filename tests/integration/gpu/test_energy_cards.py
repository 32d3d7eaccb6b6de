"""energy: cards through the vendors' real bindings and stand-ins for their libraries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.cards import CardSource
from ccagent.agents.energy.meter import EnergyMeter, EnergyTick
from tests.support.energy_tree import EnergyNode, make_settings
from tests.support.gpu_libraries import Libraries, with_cards
from tests.support.gpu_scenarios import (
    AMD,
    AMD_ADDRESSES,
    GPM,
    GPM_INSTANCES,
    MI250X,
    MI250X_ADDRESSES,
    MIG,
    MIG_SHARES,
    NVIDIA,
    NVIDIA_ADDRESSES,
)

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


class CardJobs:
    """A node with two sockets, and jobs that have cards; times pass in steps of ten seconds."""

    def __init__(self, root: Path, libraries: Libraries, driver: str, addresses: list[str]) -> None:
        self.node = EnergyNode(root)
        self.node.zones()
        self.libraries = libraries
        with_cards(root, driver, addresses)
        vendor = {"amdgpu": "amd", "nvidia": "nvidia"}[driver]
        settings = make_settings(**{"gpu-vendors": [vendor], "idle-card": 10.0})
        self.meter = EnergyMeter(settings)

    def add(self, job: int, environment: str) -> None:
        """Start a job with one process."""
        self.node.job(job, "0-3")
        self.node.write(f"{self.node.job_path(job)}/cgroup.procs", f"{1000 * job}\n")
        self.node.write(f"proc/{1000 * job}/environ", f"{environment}\0")

    def open(self, *scenarios: str) -> None:
        self.libraries.play(*scenarios)
        self.meter.open(self.node)

    def tick(self, *scenarios: str) -> EnergyTick:
        self.libraries.play(*scenarios)
        self.node.still.sleep(10)
        return self.meter.tick(self.node)

    def joules(self, job: int) -> tuple[float, float]:
        """Return the active and idle J of a job on cards."""
        account = self.meter.ledger.jobs[job]
        return account.of("gpu", "active") / 1e6, account.of("gpu", "idle") / 1e6


def counts(*dies: int) -> str:
    """Return the counters of the first dies of modules, in units of 15.3 uJ."""
    return "".join(
        f"amdsmi_get_energy_count {2 * number} = {count} 15.3\n"
        for number, count in enumerate(dies)
    )


@pytest.mark.parametrize(
    "serials",
    ["", "serial 0 = A\nserial 1 = A\nserial 2 = B\nserial 3 = B\n"],
    ids=["by bus", "by serial"],
)
def test_a_module_is_split_between_its_dies(
    tmp_path: Path, libraries: Libraries, serials: str
) -> None:
    jobs = CardJobs(tmp_path, libraries, "amdgpu", MI250X_ADDRESSES)
    jobs.add(1, "SLURM_JOB_GPUS=0")
    jobs.add(2, "SLURM_JOB_GPUS=1")
    jobs.add(3, "SLURM_JOB_GPUS=3")
    busy = "amdsmi_get_gpu_activity 0 = 25 0\namdsmi_get_gpu_activity 1 = 75 0\n"
    busy += "amdsmi_get_gpu_activity 3 = 100 0\n"
    jobs.open(MI250X, serials, busy)
    tick = jobs.tick(MI250X, serials, busy, counts(1_000_000 * 101, 1_000_000 * 51))
    jobs.meter.close()
    assert tick.errors == []
    whole, half = 1530.0, 765.0
    assert jobs.joules(1) == pytest.approx(((whole - 100) * 0.25, 50), abs=0.01)
    assert jobs.joules(2) == pytest.approx(((whole - 100) * 0.75, 50), abs=0.01)
    assert jobs.joules(3) == pytest.approx((half - 100, 50), abs=0.01)
    assert [job.coverage for job in jobs.meter.ledger.jobs.values()] == [1.0, 1.0, 1.0]


def test_a_busy_die_without_a_known_meter_is_unknown(tmp_path: Path, libraries: Libraries) -> None:
    jobs = CardJobs(tmp_path, libraries, "amdgpu", MI250X_ADDRESSES[:3])
    jobs.add(1, "SLURM_JOB_GPUS=1")
    lost = MI250X + "amdsmi_get_processor_handles = 3\namdsmi_get_gpu_activity 1 = 90 0\n"
    jobs.open(lost)
    tick = jobs.tick(lost, counts(5_000_000, 5_000_000))
    jobs.meter.close()
    assert tick.errors == [
        "card 0: no energy since the last sample: it shares its power with an unknown other die"
    ]
    assert jobs.joules(1) == (0, 0)
    assert jobs.meter.ledger.jobs[1].coverage == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("power", "flaw"),
    [("0", "it works, but reports neither energy nor power"), ("50000", "")],
)
def test_a_busy_card_without_power_is_unknown(
    tmp_path: Path, libraries: Libraries, power: str, flaw: str
) -> None:
    with_cards(tmp_path, "nvidia", NVIDIA_ADDRESSES)
    cards = Cards(tmp_path, libraries, "nvidia")
    busy = (NVIDIA, "nvmlDeviceGetUtilizationRates 1 = 5 0", POWER.format(power))
    cards.tick(*busy)
    found = cards.tick(*busy)
    cards.source.close()
    assert found[SECOND].flaw == flaw


def test_instances_share_their_card_by_multiprocessors(
    tmp_path: Path, libraries: Libraries
) -> None:
    jobs = CardJobs(tmp_path, libraries, "nvidia", NVIDIA_ADDRESSES)
    jobs.add(1, "CUDA_VISIBLE_DEVICES=MIG-aaaaaaaa-0000-0000-0000-000000000001")
    jobs.add(2, "CUDA_VISIBLE_DEVICES=MIG-aaaaaaaa-0000-0000-0000-000000000004")
    mig = NVIDIA + MIG + MIG_SHARES
    jobs.open(mig, COUNTER.format(1000))
    jobs.tick(mig, COUNTER.format(1_001_000))
    # Activity is unknown, so the idle power is split exactly and the rest by convention.
    assert jobs.joules(1) == pytest.approx((900 * 60 / 76, 100 * 60 / 132), abs=0.01)
    assert jobs.joules(2) == pytest.approx((900 * 16 / 76, 100 * 16 / 132), abs=0.01)
    assert jobs.meter.ledger.jobs[1].least == pytest.approx(100e6 * 60 / 132, rel=0.001)
    gpm = mig + GPM + GPM_INSTANCES
    for counter in (2_001_000, 3_001_000):
        before = jobs.joules(1), jobs.joules(2)
        jobs.tick(gpm, COUNTER.format(counter))
        time.sleep(0.11)  # between two samples of GPM
    jobs.meter.close()
    assert jobs.joules(1)[0] - before[0][0] == pytest.approx(900, abs=0.01)  # 60.5 % and 0 %
    assert jobs.joules(2)[0] == before[1][0]


def test_processes_of_amd_share_a_card_by_compute_units(
    tmp_path: Path, libraries: Libraries
) -> None:
    jobs = CardJobs(tmp_path, libraries, "amdgpu", AMD_ADDRESSES)
    jobs.add(1, "SLURM_JOB_GPUS=0")
    jobs.add(2, "SLURM_JOB_GPUS=0")
    units = "amdsmi_get_gpu_process_list 0 = 1000:1:90 2000:1:30"
    jobs.open(AMD, units, "amdsmi_get_energy_count 0 = 1000000 15.3")
    jobs.tick(AMD, units, "amdsmi_get_energy_count 0 = 51000000 15.3")
    assert jobs.joules(1) == pytest.approx((665 * 0.75, 50), abs=0.01)
    even = "amdsmi_get_gpu_process_list 0 = 1000:1:0 2000:1:0"
    before = jobs.meter.ledger.jobs[1].most
    jobs.tick(AMD, even, "amdsmi_get_energy_count 0 = 101000000 15.3")
    jobs.meter.close()
    assert jobs.joules(1) == pytest.approx((665 * 1.25, 100), abs=0.01)
    assert jobs.meter.ledger.jobs[1].most - before >= 715e6  # its use is unknown
