"""Memory of a job's processes, scaled to the sum of its control group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.agents.sonar.jobs.job_memory import MemoryScale
from ccagent.records.envelopes import SampleJob, SampleProcess

SIZES = st.lists(st.integers(0, 2**40), max_size=6)


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
