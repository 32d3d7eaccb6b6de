"""Batches of jobs for one envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ccagent.records.envelopes import SlurmJob

_encoder = msgspec.json.Encoder()
_JOBS_IN_ONE = 32


class JobBatch:
    """Records of jobs and steps up to `max_bytes` of JSON.

    `max_jobs` counts jobs with their steps; 0: no limit.
    """

    def __init__(self, max_bytes: int, max_jobs: int = 0) -> None:
        self._max_bytes = max_bytes
        self._max_jobs = max_jobs
        self._buffer = bytearray()
        self._records: list[SlurmJob] = []
        self._bytes = 0
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, job: SlurmJob) -> bool:
        """Add a record; return False if it does not fit. The first record always fits."""
        _encoder.encode_into(job, self._buffer)
        size = self._bytes + len(self._buffer) + 1
        if self._records and size > self._max_bytes:
            return False
        if self._max_jobs:
            if len(self._ids) >= self._max_jobs and job.job_id not in self._ids:
                return False
            self._ids.add(job.job_id)
        self._records.append(job)
        self._bytes = size
        return True

    def take(self) -> list[SlurmJob]:
        """Return all records and clear the batch."""
        records = self._records
        self._records, self._ids, self._bytes = [], set(), 0
        return records


class SentRecords:
    """Jobs and steps with a record sent for the current envelope time.

    Receivers keep one record of a job and step per time. A later record of a requeued or resized
    job therefore needs a later time. For earlier jobs two bits are kept: record of the job sent,
    and record of any step sent.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._job = -1
        self._steps: set[str] = set()
        self._earlier = 0

    def add(self, job: SlurmJob) -> bool:
        """Note a record as sent. Return False if this job and step was or may have been sent.

        Steps are distinguished only while the records of their job follow each other.
        """
        if job.job_id != self._job:
            self._begin(job.job_id)
        step = job.job_step
        is_new = step not in self._steps and not self._earlier & _bit_of(step)
        self._steps.add(step)
        return is_new

    def clear(self) -> None:
        """Forget all records, for a new envelope time."""
        self._bits.clear()
        self._steps.clear()
        self._job, self._earlier = -1, 0

    def _begin(self, job: int) -> None:
        """Store the bits of the previous job, and load the bits of the next job."""
        place, number = divmod(self._job, _JOBS_IN_ONE)
        known = self._earlier
        for step in self._steps:
            known |= _bit_of(step)
        self._bits[place] = self._bits.get(place, 0) | known << 2 * number
        self._steps.clear()
        self._job = job
        place, number = divmod(job, _JOBS_IN_ONE)
        self._earlier = self._bits.get(place, 0) >> 2 * number & 3


def _bit_of(step: str) -> int:
    return 2 if step else 1
