"""Slurm's jobs, from the envelopes of the agent `jobs`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.errors import CcagentError
from ccagent.log import printable
from ccagent.records.envelopes import JobsEnvelope

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.records.envelopes import SlurmJob

_decode = msgspec.json.Decoder(JobsEnvelope).decode
_LARGEST_ID = 2**63 - 1
_LONGEST = 1024
"""Maximum bytes of a text. The rest is left out."""
_UPSERT = """
INSERT INTO jobs (
    cluster, job_id, user_name, account, partition, job_name, state, submit_time, start_time,
    end_time, reported
)
SELECT * FROM unnest(
    %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[]
)
ON CONFLICT (job_id, cluster) DO UPDATE SET
    user_name = excluded.user_name, account = excluded.account, partition = excluded.partition,
    job_name = excluded.job_name, state = excluded.state, submit_time = excluded.submit_time,
    start_time = excluded.start_time, end_time = excluded.end_time, reported = excluded.reported
WHERE jobs.reported <= excluded.reported
"""

_SHARED = """
SELECT count(DISTINCT job_id), array_agg(DISTINCT cluster)
FROM (
    SELECT job_id, cluster, count(*) OVER (PARTITION BY job_id) AS clusters FROM jobs
) j
WHERE clusters > 1
"""


class SharedJobIds(NamedTuple):
    """The number of job ids that several clusters have used, and the names of these clusters."""

    number: int
    clusters: list[str]


class RefusedEnvelopeError(CcagentError):
    """An envelope that can never be stored."""


def decode_jobs(body: bytes, latest: datetime) -> list[tuple[Any, ...]]:
    """Return one row for each job, without steps. Raise RefusedEnvelopeError.

    latest: maximum time of an envelope. A later time would prevent all following updates.
    """
    try:
        envelope = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedEnvelopeError(
            f"not an envelope of jobs: {printable(str(error)[:200])}"
        ) from None
    if envelope.data is None:
        return []
    attributes = envelope.data.attributes
    reported = _time(attributes.time)
    if reported is None:
        raise RefusedEnvelopeError("data.attributes.time: not a time")
    if reported > latest:
        raise RefusedEnvelopeError("data.attributes.time: in the future; check the clocks")
    found: dict[int, tuple[Any, ...]] = {}
    for job in attributes.slurm_jobs:
        if not job.job_step:
            row = _row(attributes.cluster, job, reported)
            before = found.get(job.job_id)
            # Of a requeued job, keep the run that started last.
            if before is None or _began(before) <= _began(row):
                found[job.job_id] = row
    return [found[key] for key in sorted(found)]


def store_jobs(connection: Connection[Any], rows: list[tuple[Any, ...]]) -> None:
    """Insert or update rows. Keep a row with a later report."""
    if rows:
        connection.execute(_UPSERT, [list(column) for column in zip(*rows, strict=True)])


def find_shared_ids(connection: Connection[Any]) -> SharedJobIds:
    """Return the job ids that several clusters have used: without rules they are one job."""
    found = connection.execute(_SHARED).fetchone()
    return SharedJobIds(found[0], found[1] or []) if found else SharedJobIds(0, [])


def _row(cluster: str, job: SlurmJob, reported: datetime) -> tuple[Any, ...]:
    if not 0 <= job.job_id <= _LARGEST_ID:
        raise RefusedEnvelopeError(f"job {job.job_id}: not a job id")
    texts = (job.user_name, job.account, job.partition, job.job_name)
    return (
        _fit(cluster), job.job_id, *(_fit(text) or None for text in texts), _fit(job.job_state),
        _time(job.submit_time), _time(job.start_time), _time(job.end_time), reported,
    )  # fmt: skip


def _fit(text: str) -> str:
    """Return what PostgreSQL can store of a text: users choose the names of jobs."""
    return text.replace("\0", "\ufffd").encode()[:_LONGEST].decode("utf-8", "ignore")


def _began(row: tuple[Any, ...]) -> float:
    """Return the time at which a run started or was submitted, in s."""
    moment: datetime | None = row[8] or row[7]
    return 0.0 if moment is None else moment.timestamp()


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
