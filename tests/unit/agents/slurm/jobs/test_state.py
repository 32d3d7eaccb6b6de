"""Records for one envelope, and for one moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm.jobs.state import JobBatch, SentRecords
from ccagent.records.envelopes import SlurmJob


def record(job: int, step: str = "") -> SlurmJob:
    return SlurmJob(job_id=job, job_state="COMPLETED", job_step=step)


def test_a_second_record_of_a_job_or_step_is_noticed() -> None:
    sent = SentRecords()
    for each in (record(5, "batch"), record(5, "0"), record(5), record(6, "batch"), record(6)):
        assert sent.add(each)
    assert not sent.add(record(6))
    assert not sent.add(record(5, "batch"))


def test_steps_of_one_job_are_told_apart_while_they_follow_each_other() -> None:
    sent = SentRecords()
    assert sent.add(record(5, "0"))
    assert sent.add(record(5, "1"))
    assert sent.add(record(6))
    assert sent.add(record(5)), "of the job itself there was no record"


def test_nothing_is_known_of_a_new_moment() -> None:
    sent = SentRecords()
    sent.add(record(5))
    sent.add(record(6))
    sent.clear()
    assert sent.add(record(5))
    assert sent.add(record(6))


@given(st.lists(st.tuples(st.integers(1, 70), st.sampled_from(["", "batch", "0"]))))
def test_no_second_record_is_missed(identities: list[tuple[int, str]]) -> None:
    sent, seen = SentRecords(), set[tuple[int, str]]()
    for job, step in identities:
        is_new = sent.add(record(job, step))
        assert not (is_new and (job, step) in seen)
        seen.add((job, step))


def test_an_envelope_takes_records_up_to_its_bytes_and_one_at_least() -> None:
    batch = JobBatch(200)
    long = SlurmJob(job_id=1, job_state="COMPLETED", job_name="n" * 300)
    assert batch.add(long)
    assert not batch.add(record(2))
    assert batch.take() == [long]
    assert batch.add(record(2))
    assert batch.add(record(3))


def test_an_envelope_takes_all_steps_of_its_jobs() -> None:
    batch = JobBatch(10**6, max_jobs=1)
    assert batch.add(record(1, "batch"))
    assert batch.add(record(1))
    assert not batch.add(record(2))
