"""Memory of a job's processes, scaled to the sum of its control group; energy of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.agents.sonar.jobs.accounting import MemoryScale, with_energies
from ccagent.machine.job_energy import (
    EnergyInterval,
    JobEnergy,
    NodeEnergy,
    latest_energy,
    publish_energy,
)
from ccagent.records.envelopes import SampleJob, SampleJobEnergy, SampleProcess

SIZES = st.lists(st.integers(0, 2**40), max_size=6)


@pytest.fixture
def _nothing_is_left() -> Iterator[None]:
    yield
    publish_energy(None)


def job(number: int, sizes: list[int], epoch: int = 0) -> SampleJob:
    processes = [SampleProcess(pid=1 + n, resident_memory=size) for n, size in enumerate(sizes)]
    return SampleJob(job=number, user="u", epoch=epoch, processes=processes)


def sizes_of(jobs: list[SampleJob]) -> list[int]:
    return [each.resident_memory for one in jobs for each in one.processes]


@given(SIZES, SIZES, st.integers(0, 2**40))
def test_the_sum_is_that_of_the_control_group(
    first: list[int], second: list[int], wanted: int
) -> None:
    # Two users have processes in one job.
    scaled = sizes_of(MemoryScale().scale([job(7, first), job(7, second)], {7: wanted}))
    assert len(scaled) == len(first + second)
    assert sum(scaled) == (wanted if scaled else 0)
    assert min(scaled, default=0) >= 0


def test_the_proportions_stay_the_same() -> None:
    # Five processes share 100 MB after a fork; one has 40 MB of its own besides.
    assert sizes_of(MemoryScale().scale([job(7, [100, 100, 140])], {7: 170})) == [50, 50, 70]


def test_shared_memory_alone_counts_in_the_first_process() -> None:
    assert sizes_of(MemoryScale().scale([job(7, [0, 0])], {7: 160})) == [160, 0]


def test_other_jobs_stay_the_same_objects() -> None:
    jobs = [job(7, [1, 2], epoch=9), job(8, [3]), job(9, [4])]
    scaled = MemoryScale().scale(jobs, {7: 100, 9: 4})
    assert [new is old for new, old in zip(scaled, jobs, strict=True)] == [True] * 3


@given(SIZES, SIZES, SIZES, st.integers(0, 2**40))
def test_a_second_sample_is_as_the_first_of_a_new_scale(
    first: list[int], second: list[int], changed: list[int], wanted: int
) -> None:
    alice, bob = job(7, first), structs.replace(job(7, second), user="v")
    scale = MemoryScale()
    before = scale.scale([alice, bob], {7: wanted})
    assert scale.scale([alice, bob], {7: wanted}) == before
    for jobs, memory in (([job(7, changed), bob], wanted), ([alice, bob], wanted + 9)):
        assert scale.scale(jobs, {7: memory}) == MemoryScale().scale(jobs, {7: memory})


def record(number: int, user: str = "ada", epoch: int = 0) -> SampleJob:
    return SampleJob(job=number, user=user, epoch=epoch, processes=[])


@pytest.mark.usefixtures("_nothing_is_left")
def test_the_first_record_of_a_job_has_its_energy() -> None:
    parts = {
        ("cpu", "active"): 600_999_999, ("gpu", "active"): 50_000_000,
        ("cpu", "idle"): 412_500_000,
    }  # fmt: skip
    interval, memory = EnergyInterval(1010.5, 1115.5), EnergyInterval(0.0, 0.0)
    energy = JobEnergy(parts, 106_250_000, 0.98765, interval, memory, is_idle_known=True)
    publish_energy(NodeEnergy({7: energy}, {}, {}, {}, None))
    jobs = [record(7), record(7, "bob"), record(8), record(7, epoch=5)]
    found = with_energies(jobs)
    assert found[0].energy == SampleJobEnergy(
        active=650, idle=412, least=1010, most=1116, idle_known=1, power=106, coverage=98.8
    )
    assert found[1:] == jobs[1:]


def test_without_the_agent_energy_there_is_none() -> None:
    assert latest_energy() is None
    assert with_energies([record(7)]) == [record(7)]
