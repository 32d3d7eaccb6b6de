"""Events and envelopes of jobs, parsed and written to the table of jobs.

If writing fails, events are kept in memory and tried again. Their senders get an error and send
them again, so a restart loses nothing that was acknowledged.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from datetime import datetime
from http import HTTPStatus
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.errors import CcagentError, UnparsableError
from ccagent.log import logger, printable
from ccagent.machine.hostlist import expand
from ccagent.stores.budgets import HourlyBudget
from ccagent.stores.metrics.job_details import StartedJob, read_details
from ccagent.stores.metrics.job_table import (
    MOST_ENDED,
    TABLE_ERRORS,
    JobTableError,
    StoredJob,
    WaitingJob,
)
from ccagent.stores.metrics.line_keys import LAST_SECOND
from ccagent.stores.metrics.series_limits import SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.records.line_protocol import Line
    from ccagent.stores.metrics.job_table import JobTable


_MOST_JOBS = 500_000
_MOST_ENVELOPE_NODES = 2_000_000
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
    submit_time: _Scalar = None
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


def read_envelope(text: bytes) -> Iterator[StoredJob | WaitingJob]:
    """Yield the jobs of an envelope, without steps. Raise UnparsableError."""
    _left.jobs = _MOST_JOBS
    try:
        envelope = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnparsableError(f"not an envelope of jobs: {error}") from error
    attributes = (envelope.data and envelope.data.attributes) or _Attributes()
    left = _MOST_ENVELOPE_NODES
    for job in attributes.slurm_jobs or ():
        if job.job_step:
            continue
        try:
            if not job.start_time:
                yield _waiting_job(attributes.cluster, job)
                continue
            found = _stored_job(attributes.cluster, job, min(left, _MOST_OF_JOB))
        except (ValueError, TypeError, OverflowError) as error:
            raise UnparsableError(f"not an envelope of jobs: {error}") from error
        left -= len(found.nodes)
        yield found


def _waiting_job(cluster: str, job: _EnvelopeJob) -> WaitingJob:
    """Return a job that has not started. Raise ValueError."""
    if job.job_id is None:
        raise ValueError("a job without job_id")
    known: dict[str, Any] = msgspec.structs.asdict(job) | {"sacct": None}
    return WaitingJob(
        cluster, str(job.job_id), str(job.user_name),
        _seconds(job.submit_time) if job.submit_time else 0,
        read_details(known, is_waiting=True),
        has_left=str(job.job_state).upper() != "PENDING",
    )  # fmt: skip


def _stored_job(cluster: str, job: _EnvelopeJob, most: int) -> StoredJob:
    """Return a job with at most `most` nodes. Raise ValueError, UnparsableError."""
    if job.job_id is None:
        raise ValueError("a job without job_id")
    nodes: list[str] = []
    for one in job.nodes or ():
        nodes += expand(one)
        if len(nodes) > most:
            raise ValueError(
                f"more than {_MOST_OF_JOB} nodes of a job, or {_MOST_ENVELOPE_NODES} of all jobs"
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
    return _check_time(int(datetime.fromisoformat(str(text)).timestamp()))


def _check_time(time: int) -> int:
    """Return a time that a job can have. Raise ValueError."""
    if not 0 <= time < LAST_SECOND:
        raise ValueError(f"{time} is not a time of a job in seconds since 1970")
    return time


_MOST_WAITING = 16 << 20
"""Maximum size in bytes of events waiting for the table."""

_MOST_NEW = 64 << 20
"""Maximum bytes by which a sender lets the table grow in an hour: some 200,000 jobs."""

_PIECE = 0.005
"""Seconds of work before other requests get their turn."""

_MANY_NODES, _MOST_NODES = 1000, 5_000_000
"""Limits for ended jobs that wait for footprints: nodes of a large job, nodes of all jobs."""

_TRY_EVERY = 1.0
_NEVER = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors caused by an event, not by the table."""


class _StopEvent(msgspec.Struct, frozen=True, rename="camel"):
    job_id: int
    cluster: str = ""
    start_time: int = 0
    stop_time: int = 0
    job_state: str = "completed"


class JobEnvelope:
    """Result of an envelope. jobs: number of written ones. refusal: of the others."""

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.jobs = 0
        self.refusal: SeriesRefusal | None = None


class _RefusedJobError(CcagentError):
    """A job beyond its sender's budget."""

    def __init__(self, refusal: SeriesRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class JobEvents:
    """Extracts events from lines, and writes them to a table.

    ended: ended jobs that wait for their footprints. most_waiting: bytes of unwritten events.
    most_new: bytes by which a sender may let the table grow in an hour.
    """

    def __init__(
        self,
        table: JobTable,
        *,
        most_waiting: int = _MOST_WAITING,
        most_new: int = _MOST_NEW,
        now: Callable[[], float] = time,
    ) -> None:
        self._budget = HourlyBudget(most_new, now)
        self.ended: list[StoredJob] = []
        self.refused = 0
        self._table = table
        self._waiting: dict[tuple[str, bytes], None] = {}
        """Unwritten events in order, without duplicates."""
        self._size = 0
        self._most = most_waiting
        self._problem = ""
        """Reason why the last write failed."""
        self._is_closed = False
        """True if the table must be opened again."""
        self._is_full = False
        self._next_try = 0.0

    def take(self, line: Line, sender: str = "") -> SeriesRefusal | str:
        """Write the event of a line. Ignore other lines. A bad event is logged.

        Return the reason why the event is refused or only in memory; empty if it is stored, or
        invalid.
        """
        if line.measurement != "job" or line.field != "event" or not isinstance(line.value, str):
            return ""
        event = line.tags.get("function", ""), line.value.encode("utf-8", "replace")
        if self._waiting and (monotonic() < self._next_try or not self.retry()):
            return self._hold(event)
        try:
            self._write(event, sender)
        except _RefusedJobError as error:
            return error.refusal
        except TABLE_ERRORS as error:
            self._fail(error)
            return self._hold(event)
        return ""

    def take_pieces(self, text: bytes, envelope: JobEnvelope) -> Iterator[JobEnvelope]:
        """Write the jobs of a `job` envelope in pieces of a few ms. Yield after each piece.

        Nothing is written of an invalid envelope. Raise UnparsableError, or TABLE_ERRORS if
        writing fails.
        """
        jobs: list[StoredJob | WaitingJob] = []
        begin = perf_counter()
        for job in read_envelope(text):
            jobs.append(job)
            if perf_counter() - begin > _PIECE:
                yield envelope
                begin = perf_counter()
        while envelope.jobs < len(jobs) and envelope.refusal is None:
            self._write_jobs(jobs, envelope)
            yield envelope

    def _write_jobs(self, jobs: list[StoredJob | WaitingJob], envelope: JobEnvelope) -> None:
        """Write the next jobs of an envelope for a few ms."""
        if not self.retry():
            raise JobTableError(self._problem)
        self._open()
        first = count = envelope.jobs
        begin = perf_counter()
        try:
            with self._table.transaction():
                while count < len(jobs) and perf_counter() - begin < _PIECE:
                    self._start(jobs[count], envelope.sender)
                    count += 1
        except _RefusedJobError as error:
            envelope.refusal = error.refusal
            return
        except (ValueError, OverflowError) as error:
            raise UnparsableError(f"not an envelope of jobs: {error}") from error
        envelope.jobs = count
        for job in jobs[first:count]:
            if isinstance(job, StoredJob) and job.stop is not None:
                self._end(job)

    def _start(self, job: StoredJob | WaitingJob, sender: str | None) -> None:
        """Write a job. Raise _RefusedJobError beyond its sender's budget.

        sender: None for an event that has waited: it has no limit.
        """
        admit = None if sender is None else functools.partial(self._admit, sender)
        if isinstance(job, WaitingJob):
            self._table.wait(job, admit)
            return
        self._table.start(job, admit)
        self._table.leave(job.cluster, job.job)

    def _admit(self, sender: str, size: int) -> None:
        if not size or self._budget.take(sender, size):
            return
        name = printable(sender) or "this sender"
        raise _RefusedJobError(
            SeriesRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{name} has added {self._budget.most >> 20} MB of jobs in this hour: new jobs"
                " are refused",
                self._budget.seconds_left(),
            )
        )

    def retry(self) -> bool:
        """Write the waiting events. Return whether none is left."""
        if not self._waiting:
            return True
        count = len(self._waiting)
        try:
            while self._waiting:
                event = next(iter(self._waiting))
                self._write(event)
                del self._waiting[event]
                self._size -= len(event[1])
        except TABLE_ERRORS as error:
            self._fail(error)
            return False
        self._problem, self._is_full = "", False
        logger.warning("table of jobs: written again, with %d waiting events", count)
        return True

    def close(self) -> None:
        """Try a last time to write the waiting events."""
        if not self.retry():
            logger.error(
                "table of jobs: %s; %d events are lost, unless their senders send them again",
                self._problem, len(self._waiting),
            )  # fmt: skip

    def _hold(self, event: tuple[str, bytes]) -> str:
        """Keep an event in memory. Return the reason for the sender to send it again."""
        size = len(event[1])
        if event not in self._waiting:
            if self._size + size <= self._most:
                self._waiting[event] = None
                self._size += size
            elif not self._is_full:
                self._is_full = True
                logger.error(
                    "table of jobs: %d events wait in memory; further events are lost unless"
                    " their senders send them again", len(self._waiting),
                )  # fmt: skip
        return f"the table of jobs: {self._problem}"

    def _fail(self, error: sqlite3.Error | JobTableError) -> None:
        """Record a failure, and log the first one."""
        if not self._problem:
            logger.error(
                "table of jobs: %s; events are kept in memory; senders get an error and send again",
                error,
            )  # fmt: skip
        self._problem = str(error)
        self._next_try = monotonic() + _TRY_EVERY
        # Errors other than OperationalError mean a damaged or closed file.
        self._is_closed |= not isinstance(error, sqlite3.OperationalError | JobTableError)

    def _open(self) -> None:
        """Prepare the table for writing. Raise TABLE_ERRORS."""
        if not self._is_closed:
            try:
                self._table.check_file()
            except sqlite3.OperationalError as error:
                logger.error("table of jobs: %s; opening it again", error)
                self._is_closed = True
        if self._is_closed:
            self._table.reopen()
            self._is_closed = False

    def _write(self, event: tuple[str, bytes], sender: str | None = None) -> None:
        """Write an event. A bad event is logged. Raise TABLE_ERRORS if writing fails.

        sender: None for an event that has waited.
        """
        self._open()
        try:
            self._apply(*event, sender)
        except (*_NEVER, ValueError, OverflowError, RecursionError) as error:
            self.refused += 1
            logger.warning("job event: %s; skipped", error)

    def _apply(self, function: str, text: bytes, sender: str | None) -> None:
        if function == "start_job":
            started = msgspec.json.decode(text, type=StartedJob)
            nodes = tuple(dict.fromkeys(one.hostname for one in started.resources))
            self._start(
                StoredJob(
                    started.cluster,
                    str(started.job_id),
                    started.user,
                    "running",
                    _check_time(started.start_time),
                    None,
                    nodes,
                    details=started.details(),
                ),
                sender,
            )
        elif function == "stop_job":
            stopped = msgspec.json.decode(text, type=_StopEvent)
            if not max(1, stopped.start_time) <= stopped.stop_time < LAST_SECOND:
                raise ValueError(f"job {stopped.job_id} ends at {stopped.stop_time}")
            number = str(stopped.job_id)
            job = self._table.stop(
                stopped.cluster, number, stopped.start_time, stopped.stop_time,
                stopped.job_state or "completed",
            )  # fmt: skip
            if job is not None:
                self._end(job)
            elif all(
                one.stop != stopped.stop_time for one in self._table.find(stopped.cluster, number)
            ):  # not a repeated event
                self.refused += 1
                logger.warning("job event: job %d is not running; skipped", stopped.job_id)

    def _end(self, job: StoredJob) -> None:
        self.ended.append(job)
        del self.ended[:-MOST_ENDED]
        if len(job.nodes) > _MANY_NODES:
            # Dropped jobs are in the table too. The next start computes their footprints.
            nodes = sum(len(one.nodes) for one in self.ended)
            while nodes > _MOST_NODES:
                nodes -= len(self.ended.pop(0).nodes)
