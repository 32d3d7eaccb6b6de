"""The table of jobs: users, nodes, times and details.

Two sources fill the table through `job_events`: events of ClusterCockpit (`job,function=start_job
event="..."`), and the `job` envelopes of ccagent's agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ccagent.errors import CcagentError, NotPermittedError
from ccagent.log import logger
from ccagent.service.private_files import make_private
from ccagent.stores.metrics.job_details import StoredJobDetails, details_of_row

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

T = TypeVar("T")

_SCHEMA = """
create table if not exists jobs (
    cluster text not null, job text not null, user text not null, state text not null,
    start integer not null, stop integer, nodes text not null, footprint text, details text,
    primary key (cluster, job, start)
) strict, without rowid;
create index if not exists jobs_by_number on jobs (job);
create table if not exists waiting (
    cluster text not null, job text not null, user text not null, submitted integer not null,
    details text not null, primary key (cluster, job)
) strict, without rowid;
"""

_ALL = (
    'select cluster, job, "user", state, start, stop, nodes, footprint, details from {jobs} where '
)

_ROW = 100
"""Approximate bytes of a row besides its texts."""

MOST_ENDED = 100_000
"""Maximum number of ended jobs that wait for their footprints."""

JOBS_KEPT = 366 * 86400
"""Seconds after which an ended job is removed."""

_REMOVED_AT_ONCE = 5000

_LOCKED, _LOCKED_AT_START = 0.1, 5.0
"""SQLite's busy timeout in seconds, for locks of other programs."""


class StoredJob(NamedTuple):
    """A job. stop: None while the job runs."""

    cluster: str
    job: str
    user: str
    state: str
    start: int
    stop: int | None
    nodes: tuple[str, ...]
    footprint: dict[str, Any] | None = None
    details: StoredJobDetails = StoredJobDetails()


class WaitingJob(NamedTuple):
    """A job that has not started. submitted: seconds since 1970, 0: unknown.

    details: cores, memory and GPUs are those that it asks for. has_left: it was cancelled.
    """

    cluster: str
    job: str
    user: str
    submitted: int
    details: StoredJobDetails = StoredJobDetails()
    has_left: bool = False


class JobTableError(CcagentError):
    """The shared table of jobs can't be reached, or fails."""


TABLE_ERRORS = (sqlite3.Error, JobTableError)
"""Errors of the table, not of a job."""


class JobTable:
    """Jobs by cluster, job number and start, in SQLite.

    survives_power_failure: true to sync each change to disk before it returns.
    """

    def __init__(self, path: str, *, survives_power_failure: bool = False) -> None:
        """Open or create the table. Raise sqlite3.Error."""
        self._path = path
        self._synchronous = "full" if survives_power_failure else "normal"
        self._open(_LOCKED_AT_START)
        # A lock of another program must not block the running store.
        self._database.execute(f"pragma busy_timeout = {int(1000 * _LOCKED)}")

    def _open(self, seconds: float) -> None:
        try:
            make_private(self._path)  # SQLite gives its side files the same mode
        except (OSError, NotPermittedError) as error:
            raise sqlite3.OperationalError(str(error)) from error
        self._database = sqlite3.connect(self._path, isolation_level=None, timeout=seconds)
        try:
            self._database.execute("pragma journal_mode = wal")
            self._database.execute(f"pragma synchronous = {self._synchronous}")
            self._database.executescript(_SCHEMA)
            columns = {row[1] for row in self._database.execute("pragma table_info(jobs)")}
            if "details" not in columns:  # a table of an earlier release
                self._database.execute("alter table jobs add column details text")
            check_database(self._database)
            self._file = identify(self._path)
        except BaseException:
            self._database.close()
            raise

    def reopen(self) -> None:
        """Open the table again. Rename a damaged file. Raise sqlite3.Error."""
        self._database.close()
        open_or_replace(self._path, lambda: self._open(_LOCKED))

    def check_file(self) -> None:
        """Raise sqlite3.OperationalError if the file was removed or replaced."""
        if identify(self._path) != self._file:
            raise sqlite3.OperationalError(f"{self._path} was removed or replaced")

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """Execute several changes as one transaction. Raise sqlite3.Error."""
        self._database.execute("begin immediate")
        try:
            yield
            self._database.execute("commit")
        finally:
            if self._database.in_transaction:
                self._database.execute("rollback")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def start(self, job: StoredJob, admit: Callable[[int], object] | None = None) -> None:
        """Add or update a job. Keep known details and a known end that `job` lacks.

        admit: receives the bytes by which the table grows; raises an exception to refuse them.
        """
        rows, _ = self._execute(
            "select details, length(nodes) from {jobs}"
            " where cluster = ? and job = ? and start = ?{lock}",
            (job.cluster, job.job, job.start),
        )
        known = rows[0] if rows else None
        details = job.details if known is None else details_of_row(known[0]).merged(job.details)
        nodes, described = json.dumps(job.nodes), msgspec.json.encode(details).decode()
        if admit is not None:
            before = 0 if known is None else _ROW + known[1] + len(known[0] or "")
            names = len(job.cluster) + len(job.job) + len(job.user) if known is None else 0
            admit(max(0, _ROW + names + len(nodes) + len(described) - before))
        self._execute(
            "insert into {jobs} as known"
            ' (cluster, job, "user", state, start, stop, nodes, footprint, details)'
            " values (?, ?, ?, ?, ?, ?, ?, null, ?)"
            # A repeated start message must not restart an ended job.
            ' on conflict (cluster, job, start) do update set "user" = excluded."user", state ='
            " case when excluded.stop is null and known.stop is not null then known.state"
            " else excluded.state end, stop = coalesce(excluded.stop, known.stop),"
            " nodes = excluded.nodes, details = excluded.details",
            (
                job.cluster, job.job, job.user, job.state, job.start, job.stop, nodes, described,
            ),
        )  # fmt: skip

    def wait(self, job: WaitingJob, admit: Callable[[int], object] | None = None) -> None:
        """Add, update or delete a job that has not started. admit: as of `start`."""
        self.leave(job.cluster, job.job)
        if job.has_left:
            return
        described = msgspec.json.encode(job.details).decode()
        if admit is not None:
            admit(_ROW + len(job.cluster) + len(job.job) + len(job.user) + len(described))
        self._execute(
            "insert into waiting values (?, ?, ?, ?, ?)",
            (job.cluster, job.job, job.user, job.submitted, described),
        )

    def leave(self, cluster: str, job: str) -> None:
        """Delete a job that no longer waits."""
        self._execute("delete from waiting where cluster = ? and job = ?", (cluster, job))

    def stop(self, cluster: str, job: str, start: int, stop: int, state: str) -> StoredJob | None:
        """End a running job; start 0: the latest run. Return the job; None if none is running."""
        found = [
            one
            for one in self.find(cluster, job)
            if one.stop is None and (not start or one.start == start)
        ]
        if not found:
            return None
        last = found[-1]
        self._execute(
            "update {jobs} set stop = ?, state = ? where cluster = ? and job = ? and start = ?",
            (stop, state, last.cluster, job, last.start),
        )
        return last._replace(stop=stop, state=state)

    def keep_footprint(self, job: StoredJob, footprint: dict[str, Any]) -> None:
        """Store the statistics of an ended job."""
        self._execute(
            "update {jobs} set footprint = ? where cluster = ? and job = ? and start = ?",
            (json.dumps(footprint), job.cluster, job.job, job.start),
        )

    def find(self, cluster: str, job: str) -> list[StoredJob]:
        """Return the runs of a job, earliest first. cluster empty: of all clusters."""
        return self._select(
            "job = ? and (cluster = ? or cast(? as text) = '') order by start",
            (job, cluster, cluster),
        )

    def find_ended(self, since: int) -> list[StoredJob]:
        """Return the jobs that ended since a time and have no footprint, earliest first."""
        return self._select(
            "stop >= ? and footprint is null order by stop limit ?", (since, MOST_ENDED)
        )

    def _select(self, condition: str, values: tuple[str | int, ...]) -> list[StoredJob]:
        found: list[StoredJob] = []
        rows, _ = self._execute(_ALL + condition, values)
        for row in rows:
            try:
                found.append(job_of_row(row))
            except (ValueError, TypeError) as error:
                logger.error("table of jobs: job %s can't be read: %s", row[1], error)
        return found

    def forget_waiting(self, time: int) -> None:
        """Delete the waiting jobs that were submitted before a time: their end was never told."""
        self._execute("delete from waiting where submitted < ?", (time,))

    async def remove_before(self, time: int) -> int:
        """Delete the jobs that ended before a time. Return their number.

        Other work is done between parts. A shared table limits the time of a statement.
        """
        removed, part = 0, _REMOVED_AT_ONCE
        while part == _REMOVED_AT_ONCE:
            _, part = self._execute(
                "delete from {jobs} where (cluster, job, start) in"
                " (select cluster, job, start from {jobs} where stop < ? limit ?)",
                (time, _REMOVED_AT_ONCE),
            )
            removed += part
            await asyncio.sleep(0)
        self.forget_waiting(time)
        return removed

    def _execute(self, query: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows of a statement, and the number of changed rows.

        `{jobs}` is the table; `{lock}` locks a row that is then changed.
        """
        text = query.replace("{jobs}", "jobs").replace("{lock}", "")
        found = self._database.execute(text, values)
        return found.fetchall(), found.rowcount


def check_database(database: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError if the database is damaged."""
    (found,) = database.execute("pragma quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def identify(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it can't be found."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_or_replace(path: str, open_table: Callable[[], T]) -> T:
    """Return an opened table. Rename a damaged file, and begin a new one. Raise sqlite3.Error."""
    try:
        return open_table()
    except sqlite3.OperationalError:
        raise  # a full disk or missing permissions: the file itself is intact
    except sqlite3.DatabaseError as error:
        _set_aside(path, error)
        return open_table()


def _set_aside(path: str, error: sqlite3.Error) -> None:
    """Rename a damaged table to `.damaged`. Raise sqlite3.OperationalError."""
    logger.error("%s: %s; renamed to %s.damaged", path, error, path)
    try:
        os.replace(path, f"{path}.damaged")
        for suffix in ("-wal", "-shm"):  # files of the damaged database
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}{suffix}")
    except OSError as problem:
        raise sqlite3.OperationalError(f"{path}: {problem.strerror}") from problem


def open_job_table(path: str, *, survives_power_failure: bool = False) -> JobTable:
    """Open the table. Rename a damaged file. Raise sqlite3.Error."""
    return open_or_replace(
        path, lambda: JobTable(path, survives_power_failure=survives_power_failure)
    )


def find_ended_jobs(table: JobTable, since: int) -> list[StoredJob]:
    """Return ended jobs without a footprint, left by the previous run."""
    try:
        return table.find_ended(since)
    except TABLE_ERRORS as error:
        logger.error("table of jobs: %s; some footprints are missing", error)
        return []


def job_of_row(row: tuple[Any, ...]) -> StoredJob:
    """Return the job of a row of `_ALL`. Raise ValueError or TypeError for a damaged one."""
    *fields, nodes, footprint, details = row
    kept = json.loads(footprint) if footprint else None
    return StoredJob._make((*fields, tuple(json.loads(nodes)), kept, details_of_row(details)))
