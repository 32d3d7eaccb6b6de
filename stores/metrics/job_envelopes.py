"""Parser of the agent `jobs`' envelopes, with limits against excessive memory use."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import expand
from ccagent.stores.metrics.job_details import read_details
from ccagent.stores.metrics.job_table import StoredJob

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_JOBS = 500_000
_MOST_NODES = 2_000_000
"""Maximum number of node names of all jobs of an envelope."""

_MOST_OF_JOB = 100_000
"""Maximum number of node names of a job."""

_Scalar = str | int | float | bool | None
_left = threading.local()


class _Accounting(msgspec.Struct, frozen=True):
    user: _Scalar = msgspec.field(default=None, name="UserCPU")
    system: _Scalar = msgspec.field(default=None, name="SystemCPU")


class _EnvelopeJob(msgspec.Struct, kw_only=True):
    """The fields of a job or step that the table uses. Other fields are ignored."""

    job_id: _Scalar = None
    job_step: _Scalar = None
    job_state: _Scalar = ""
    job_name: _Scalar = None
    user_name: _Scalar = ""
    account: _Scalar = None
    partition: _Scalar = None
    start_time: _Scalar = None
    end_time: _Scalar = None
    nodes: list[str] | None = None
    time_limit: _Scalar = None
    requested_resources: _Scalar = None
    allocated_resources: _Scalar = None
    exit_code: _Scalar = 0
    sacct: _Accounting | None = None

    def __post_init__(self) -> None:
        # Raised during decoding: stops at a body with too many small jobs.
        _left.jobs -= 1
        if _left.jobs < 0:
            raise ValueError(f"more than {_MOST_JOBS} jobs")


class _Attributes(msgspec.Struct):
    cluster: str = ""
    slurm_jobs: list[_EnvelopeJob] | None = None


class _Data(msgspec.Struct):
    attributes: _Attributes | None = None


class _Envelope(msgspec.Struct):
    data: _Data | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


def read_envelope(text: bytes) -> Iterator[StoredJob]:
    """Yield the jobs of an envelope, without steps. Raise UnparsableError."""
    _left.jobs = _MOST_JOBS
    try:
        envelope = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnparsableError(f"not an envelope of jobs: {error}") from error
    attributes = (envelope.data and envelope.data.attributes) or _Attributes()
    left = _MOST_NODES
    for job in attributes.slurm_jobs or ():
        if job.job_step or not job.start_time:
            continue
        try:
            found = _stored_job(attributes.cluster, job, min(left, _MOST_OF_JOB))
        except (ValueError, TypeError, OverflowError) as error:
            raise UnparsableError(f"not an envelope of jobs: {error}") from error
        left -= len(found.nodes)
        yield found


def _stored_job(cluster: str, job: _EnvelopeJob, most: int) -> StoredJob:
    """Return a job with at most `most` nodes. Raise ValueError, UnparsableError."""
    if job.job_id is None:
        raise ValueError("a job without job_id")
    nodes: list[str] = []
    for one in job.nodes or ():
        nodes += expand(one)
        if len(nodes) > most:
            raise ValueError(
                f"more than {_MOST_OF_JOB} nodes of a job, or {_MOST_NODES} of all jobs"
            )
    known: dict[str, Any] = msgspec.structs.asdict(job)
    if job.sacct is not None:
        known["sacct"] = {"UserCPU": job.sacct.user, "SystemCPU": job.sacct.system}
    return StoredJob(
        cluster, str(job.job_id), str(job.user_name), str(job.job_state).lower(),
        _seconds(job.start_time), _seconds(job.end_time) if job.end_time else None,
        tuple(nodes), details=read_details(known),
    )  # fmt: skip


def _seconds(text: object) -> int:
    return int(datetime.fromisoformat(str(text)).timestamp())
