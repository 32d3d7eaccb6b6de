"""sample: energy of jobs in their records, on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccagent.agents.sonar.jobs.energies import with_energies
from ccagent.machine.job_energy import JobEnergy, latest_energies, publish_energies
from ccagent.records.envelopes import SampleJob, SampleJobEnergy


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    publish_energies({})


def job(number: int, user: str = "ada", epoch: int = 0) -> SampleJob:
    return SampleJob(job=number, user=user, epoch=epoch, processes=[])


def test_the_first_record_of_a_job_has_its_energy() -> None:
    publish_energies({7: JobEnergy(650_999_999, 412_500_000, 106_250_000, 0.98765)})
    jobs = [job(7), job(7, "bob"), job(8), job(7, epoch=5)]
    found = with_energies(jobs)
    assert found[0].energy == SampleJobEnergy(active=650, idle=412, power=106, coverage=98.8)
    assert found[1:] == jobs[1:]


def test_without_the_agent_energy_there_is_none() -> None:
    assert latest_energies() == {}
    assert with_energies([job(7)]) == [job(7)]
