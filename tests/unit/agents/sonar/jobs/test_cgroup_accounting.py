"""sample: energy of jobs in their records, on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccagent.agents.sonar.jobs.cgroup_accounting import with_energies
from ccagent.machine.job_energy import (
    EnergyInterval,
    JobEnergy,
    NodeEnergy,
    latest_energy,
    publish_energy,
)
from ccagent.records.envelopes import SampleJob, SampleJobEnergy


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    publish_energy(None)


def job(number: int, user: str = "ada", epoch: int = 0) -> SampleJob:
    return SampleJob(job=number, user=user, epoch=epoch, processes=[])


def test_the_first_record_of_a_job_has_its_energy() -> None:
    parts = {
        ("cpu", "active"): 600_999_999, ("gpu", "active"): 50_000_000,
        ("cpu", "idle"): 412_500_000,
    }  # fmt: skip
    interval, memory = EnergyInterval(1010.5, 1115.5), EnergyInterval(0.0, 0.0)
    energy = JobEnergy(parts, 106_250_000, 0.98765, interval, memory, is_idle_known=True)
    publish_energy(NodeEnergy({7: energy}, {}, {}, {}, None))
    jobs = [job(7), job(7, "bob"), job(8), job(7, epoch=5)]
    found = with_energies(jobs)
    assert found[0].energy == SampleJobEnergy(
        active=650, idle=412, least=1010, most=1116, idle_known=1, power=106, coverage=98.8
    )
    assert found[1:] == jobs[1:]


def test_without_the_agent_energy_there_is_none() -> None:
    assert latest_energy() is None
    assert with_energies([job(7)]) == [job(7)]
