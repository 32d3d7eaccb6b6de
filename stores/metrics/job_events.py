"""Events and envelopes of jobs, written to the table of jobs.

If writing fails, events are kept in memory and tried again. Their senders get an error and send
them again, so a restart loses nothing that was acknowledged.
"""

from __future__ import annotations

import sqlite3
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import UnparsableError
from ccagent.log import logger
from ccagent.stores.metrics.job_details import StartedJob
from ccagent.stores.metrics.job_envelopes import read_envelope
from ccagent.stores.metrics.job_table import MOST_ENDED, StoredJob

if TYPE_CHECKING:
    from ccagent.records.line_protocol.lines import Line
    from ccagent.stores.metrics.job_table import JobTable

_MOST_WAITING = 16 << 20
"""Maximum size in bytes of events waiting for the table."""

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


class JobEvents:
    """Extracts events from lines, and writes them to a table.

    ended: ended jobs that wait for their footprints.
    """

    def __init__(self, table: JobTable, *, most_waiting: int = _MOST_WAITING) -> None:
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

    @property
    def waiting(self) -> int:
        """Return the number of unwritten events."""
        return len(self._waiting)

    def take(self, line: Line) -> str:
        """Write the event of a line. Ignore other lines. A bad event is logged.

        Return the reason why the event is only in memory; empty if it is stored, or invalid.
        """
        if line.measurement != "job" or line.field != "event" or not isinstance(line.value, str):
            return ""
        event = line.tags.get("function", ""), line.value.encode("utf-8", "replace")
        if self._waiting and (monotonic() < self._next_try or not self.retry()):
            return self._hold(event)
        try:
            self._write(event)
        except sqlite3.Error as error:
            self._fail(error)
            return self._hold(event)
        return ""

    def take_envelope(self, text: bytes) -> int:
        """Write the jobs of a `job` envelope, all or none. Return their number.

        Raise UnparsableError, or sqlite3.Error if writing fails.
        """
        if not self.retry():
            raise sqlite3.OperationalError(self._problem)
        self._open()
        count, ended = 0, list[StoredJob]()
        try:
            with self._table.transaction():
                for job in read_envelope(text):
                    self._table.start(job)
                    count += 1
                    if job.stop is not None:
                        ended.append(job)
        except (ValueError, OverflowError) as error:
            raise UnparsableError(f"not an envelope of jobs: {error}") from error
        for job in ended:
            self._end(job)
        return count

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
        except sqlite3.Error as error:
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

    def _fail(self, error: sqlite3.Error) -> None:
        """Record a failure, and log the first one."""
        if not self._problem:
            logger.error(
                "table of jobs: %s; events are kept in memory; senders get an error and send again",
                error,
            )  # fmt: skip
        self._problem = str(error)
        self._next_try = monotonic() + _TRY_EVERY
        # Errors other than OperationalError mean a damaged or closed file.
        self._is_closed |= not isinstance(error, sqlite3.OperationalError)

    def _open(self) -> None:
        """Prepare the table for writing. Raise sqlite3.Error."""
        if not self._is_closed:
            try:
                self._table.check_file()
            except sqlite3.OperationalError as error:
                logger.error("table of jobs: %s; opening it again", error)
                self._is_closed = True
        if self._is_closed:
            self._table.reopen()
            self._is_closed = False

    def _write(self, event: tuple[str, bytes]) -> None:
        """Write an event. A bad event is logged. Raise sqlite3.Error if writing fails."""
        self._open()
        try:
            self._apply(*event)
        except (*_NEVER, ValueError, OverflowError, RecursionError) as error:
            self.refused += 1
            logger.warning("job event: %s; skipped", error)

    def _apply(self, function: str, text: bytes) -> None:
        if function == "start_job":
            started = msgspec.json.decode(text, type=StartedJob)
            nodes = tuple(dict.fromkeys(one.hostname for one in started.resources))
            self._table.start(
                StoredJob(
                    started.cluster,
                    str(started.job_id),
                    started.user,
                    "running",
                    started.start_time,
                    None,
                    nodes,
                    details=started.details(),
                )
            )
        elif function == "stop_job":
            stopped = msgspec.json.decode(text, type=_StopEvent)
            if stopped.stop_time < max(1, stopped.start_time):
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
