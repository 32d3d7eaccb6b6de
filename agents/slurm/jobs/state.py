"""Sent records: batches for envelopes, and digests kept across restarts."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.base import read_state, write_state
from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.records.envelopes import SlurmJob


_VERSION = 1
_DIGEST_BYTES = 8
_LARGEST = 2_000_000
_LARGEST_FILE = 64 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_JOBS_IN_ONE = 32


class _StateFile(msgspec.Struct):
    version: int
    until: int
    digests: bytes


class SentState:
    """Distinguishes new and changed records from sent records.

    path: state file; empty: only in memory. A round starts with the first `is_new` after `commit`.
    Records that a round does not show are forgotten, so the size is that of one round.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sent: set[int] = set()
        self._seen: set[int] = set()
        self._is_saved = False
        self._last = (b"", _digest(b""))
        self.until = 0
        """Seconds since 1970 up to which all jobs were sent; 0: no job was sent yet."""
        if path:
            self._load()

    def is_new(self, record: bytes) -> bool:
        """Return whether a record, given as its content, was not sent before.

        The record counts as sent from the next commit on.
        """
        digest = _digest(record)
        self._seen.add(digest)
        return digest not in self._sent

    def is_known(self, record: bytes) -> bool:
        """Return whether a record was sent before. If so, keep it for the next round."""
        digest = _digest(record)
        self._last = (record, digest)
        if digest not in self._sent:
            return False
        self._seen.add(digest)
        return True

    def add(self, record: bytes) -> None:
        """Count a record as sent from the next commit on."""
        last, digest = self._last
        self._seen.add(digest if record is last else _digest(record))

    def retract(self, record: bytes) -> None:
        """Count a record as not sent."""
        digest = _digest(record)
        self._sent.discard(digest)
        self._seen.discard(digest)

    def commit(self, until: int | None) -> None:
        """Note all shown records as sent, in memory.

        until: None for an incomplete round; then no record is forgotten.
        """
        if until is None:
            self._sent |= self._seen
        else:
            self._sent, self.until = self._seen, until
        self._seen = set()
        self._is_saved = False
        if len(self._sent) > _LARGEST:
            logger.warning("agent jobs: more than %d records; sending all again", _LARGEST)
            self._sent = set()

    def save(self) -> None:
        """Write the state file if the state has changed.

        Log an error if that fails; the state stays in memory.
        """
        if self._path and not self._is_saved:
            write_state(
                self._path, _StateFile(_VERSION, self.until, array("Q", self._sent).tobytes())
            )
            self._is_saved = True

    def forget(self) -> None:
        """Forget all sent records: all records are new. The file stays unchanged until `save`."""
        self._sent, self.until = set(), 0

    def discard(self) -> None:
        """Forget the records shown since the last commit: they were not sent."""
        self._seen = set()

    def _load(self) -> None:
        found = read_state(self._path, _StateFile, _LARGEST_FILE, "sending all again")
        if found is None or found.version != _VERSION:
            return
        if len(found.digests) % _DIGEST_BYTES:
            logger.warning("state-file %s: damaged; sending all again", self._path)
            return
        self._sent, self.until = set(array("Q", found.digests)), found.until


def _digest(record: bytes) -> int:
    return int.from_bytes(blake2b(record, digest_size=_DIGEST_BYTES).digest(), "big")


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
