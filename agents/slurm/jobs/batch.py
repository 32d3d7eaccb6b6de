"""Jobs that go in one envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ccagent.records.envelopes import SlurmJob

_encoder = msgspec.json.Encoder()


class Batch:
    """Records of jobs and steps up to `max_bytes` of JSON, each job and step at most once.

    A consumer keeps one record of a job and step in an envelope: of a job that was requeued or
    resized the later one goes into the next. `max_jobs` counts jobs with their steps; 0: no limit.
    """

    def __init__(self, max_bytes: int, max_jobs: int = 0) -> None:
        self._max_bytes = max_bytes
        self._max_jobs = max_jobs
        self._buffer = bytearray()
        self._records: list[SlurmJob] = []
        self._bytes = 0
        self._next_bytes = 0
        self._ids: set[int] = set()
        self._steps: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._records)

    def has_room(self, job: SlurmJob) -> bool:
        """Return whether a record still fits into the envelope; the next to add must be this."""
        _encoder.encode_into(job, self._buffer)
        self._next_bytes = len(self._buffer) + 1
        if not self._records:
            return True
        is_full = 0 < self._max_jobs <= len(self._ids) and job.job_id not in self._ids
        return not is_full and self._bytes + self._next_bytes <= self._max_bytes

    def has(self, job: SlurmJob) -> bool:
        """Return whether there is a record of this job and step already."""
        return (job.job_id, job.job_step) in self._steps

    def add(self, job: SlurmJob) -> None:
        """Put a record in."""
        self._records.append(job)
        self._bytes += self._next_bytes
        self._ids.add(job.job_id)
        self._steps.add((job.job_id, job.job_step))

    def take(self) -> list[SlurmJob]:
        """Take all records out."""
        records = self._records
        self._records, self._ids, self._steps, self._bytes = [], set(), set(), 0
        return records
