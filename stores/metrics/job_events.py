"""Events and envelopes of jobs on their way into the table of jobs.

What the table can't take now is kept in memory and tried again; its sender is told, so that a
restart loses nothing that was acknowledged.
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
"""Bytes of events that wait for the table."""

_MANY_NODES, _MOST_NODES = 1000, 5_000_000
"""Nodes of ended jobs that wait for their footprints: of a large job, and of all together."""

_TRY_EVERY = 1.0
_NEVER = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors of an event, not of the table."""


class _StopEvent(msgspec.Struct, frozen=True, rename="camel"):
    job_id: int
    cluster: str = ""
    start_time: int = 0
    stop_time: int = 0
    job_state: str = "completed"


class JobEvents:
    """Takes events out of lines, and writes them to a table.

    ended: the jobs that have ended and wait for their footprints.
    """

    def __init__(self, table: JobTable, *, most_waiting: int = _MOST_WAITING) -> None:
        self.ended: list[StoredJob] = []
        self.refused = 0
        self._table = table
        self._waiting: dict[tuple[str, bytes], None] = {}
        """Events that the table has not taken yet, in their order; one that comes again is one."""
        self._size = 0
        self._most = most_waiting
        self._problem = ""
        """Why the last write failed."""
        self._is_closed = False
        """True if the table must be opened again."""
        self._is_full = False
        self._next_try = 0.0

    @property
    def waiting(self) -> int:
        """Return the number of events that the table has not taken yet."""
        return len(self._waiting)

    def take(self, line: Line) -> str:
        """Take the line of an event; others are passed over. A bad one is logged.

        Return why the event is in memory only; empty if it is kept, or never can be.
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
        """Take the jobs of an envelope of kind `job`, all or none; return their number.

        Raises UnparsableError, and sqlite3.Error if they can't be kept now.
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
            raise UnparsableError(f"no envelope of jobs: {error}") from error
        for job in ended:
            self._end(job)
        return count

    def retry(self) -> bool:
        """Write the events that wait; return whether none does any more."""
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
        logger.warning("table of jobs: written again, with %d events that waited", count)
        return True

    def close(self) -> None:
        """Write what waits a last time."""
        if not self.retry():
            logger.error(
                "table of jobs: %s; %d events are lost, unless their senders send them again",
                self._problem, len(self._waiting),
            )  # fmt: skip

    def _hold(self, event: tuple[str, bytes]) -> str:
        """Keep an event in memory; return why it must be sent again."""
        size = len(event[1])
        if event not in self._waiting:
            if self._size + size <= self._most:
                self._waiting[event] = None
                self._size += size
            elif not self._is_full:
                self._is_full = True
                logger.error(
                    "table of jobs: %d events wait in memory; of further ones those are lost that"
                    " are not sent again", len(self._waiting),
                )  # fmt: skip
        return f"the table of jobs: {self._problem}"

    def _fail(self, error: sqlite3.Error) -> None:
        """Remember a failure, and log the first one."""
        if not self._problem:
            logger.error(
                "table of jobs: %s; events are kept in memory, and their senders are told to send"
                " again", error,
            )  # fmt: skip
        self._problem = str(error)
        self._next_try = monotonic() + _TRY_EVERY
        # Others than these mean a damaged or a closed file.
        self._is_closed |= not isinstance(error, sqlite3.OperationalError)

    def _open(self) -> None:
        """Have the table ready to be written. Raises sqlite3.Error."""
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
        """Write an event; a bad one is logged. Raises sqlite3.Error if it can't be kept now."""
        self._open()
        try:
            self._apply(*event)
        except (*_NEVER, ValueError, OverflowError, RecursionError) as error:
            self.refused += 1
            logger.warning("job event: %s; left out", error)

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
            ):  # not one that was sent twice
                self.refused += 1
                logger.warning("job event: job %d does not run; left out", stopped.job_id)

    def _end(self, job: StoredJob) -> None:
        self.ended.append(job)
        del self.ended[:-MOST_ENDED]
        if len(job.nodes) > _MANY_NODES:
            # The table has them, too: the next start computes what is left out here.
            nodes = sum(len(one.nodes) for one in self.ended)
            while nodes > _MOST_NODES:
                nodes -= len(self.ended.pop(0).nodes)
