"""Jobs that go in one envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.envelopes import SlurmJob


class Batch:
    """Up to `size` jobs with their steps, each job and step at most once.

    A consumer keeps one record of a job and step in an envelope: of a job that was requeued or
    resized the later one goes into the next.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: list[SlurmJob] = []
        self._ids: set[int] = set()
        self._steps: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._records)

    def is_full_for(self, job: SlurmJob) -> bool:
        """Tell whether a record must go into the next envelope."""
        is_full = len(self._ids) >= self._size and job.job_id not in self._ids
        return is_full or (job.job_id, job.job_step) in self._steps

    def add(self, job: SlurmJob) -> None:
        """Put a record in."""
        self._records.append(job)
        self._ids.add(job.job_id)
        self._steps.add((job.job_id, job.job_step))

    def take(self) -> list[SlurmJob]:
        """Take all records out."""
        records = self._records
        self._records, self._ids, self._steps = [], set(), set()
        return records
