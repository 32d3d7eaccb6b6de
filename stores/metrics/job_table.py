"""The table of jobs: who ran where and when, in SQLite.

Two sources fill it: events of ClusterCockpit (`job,function=start_job event="..."`), and the `job`
envelopes of ccagent's agent.
"""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.config.settings import as_list, as_table
from ccagent.errors import ConfigurationError, UnparsableError
from ccagent.log import logger
from ccagent.machine.hostlist import expand
from ccagent.stores.metrics.job_details import StartedJob, StoredJobDetails, read_details

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.line_protocol.lines import Line

_SCHEMA = """
create table if not exists jobs (
    cluster text not null, job text not null, user text not null, state text not null,
    start integer not null, stop integer, nodes text not null, footprint text, details text,
    primary key (cluster, job, start)
) strict, without rowid;
create index if not exists jobs_by_number on jobs (job);
"""


_ALL = "select cluster, job, user, state, start, stop, nodes, footprint, details from jobs"

_MOST_ENDED = 100_000
"""Ended jobs that wait for their footprints."""


class _StopEvent(msgspec.Struct, frozen=True, rename="camel"):
    job_id: int
    cluster: str = ""
    start_time: int = 0
    stop_time: int = 0
    job_state: str = "completed"


class StoredJob(NamedTuple):
    """A job. stop: None while it runs."""

    cluster: str
    job: str
    user: str
    state: str
    start: int
    stop: int | None
    nodes: tuple[str, ...]
    footprint: dict[str, Any] | None = None
    details: StoredJobDetails = StoredJobDetails()


class JobTable:
    """Jobs by cluster, number and start."""

    def __init__(self, path: str) -> None:
        """Open or make the table. Raises sqlite3.Error."""
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = normal")
        self._database.executescript(_SCHEMA)
        columns = {row[1] for row in self._database.execute("pragma table_info(jobs)")}
        if "details" not in columns:  # a table of an earlier release
            self._database.execute("alter table jobs add column details text")
        (found,) = self._database.execute("pragma quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def start(self, job: StoredJob) -> None:
        """Add a job, or replace what is known of it; details that it lacks are kept."""
        known = self._database.execute(
            "select details from jobs where cluster = ? and job = ? and start = ?",
            (job.cluster, job.job, job.start),
        ).fetchone()
        details = job.details if known is None else _details(known[0]).merged(job.details)
        self._database.execute(
            "insert into jobs values (?, ?, ?, ?, ?, ?, ?, null, ?)"
            " on conflict do update set user = excluded.user, state = excluded.state,"
            " stop = excluded.stop, nodes = excluded.nodes, details = excluded.details",
            (
                job.cluster, job.job, job.user, job.state, job.start, job.stop,
                json.dumps(job.nodes), msgspec.json.encode(details).decode(),
            ),
        )  # fmt: skip

    def stop(self, cluster: str, job: str, start: int, stop: int, state: str) -> StoredJob | None:
        """End a running job; without a start it is the latest. Return it, None if there is none."""
        found = [
            one
            for one in self.find(cluster, job)
            if one.stop is None and (not start or one.start == start)
        ]
        if not found:
            return None
        last = found[-1]
        self._database.execute(
            "update jobs set stop = ?, state = ? where cluster = ? and job = ? and start = ?",
            (stop, state, last.cluster, job, last.start),
        )
        return last._replace(stop=stop, state=state)

    def keep_footprint(self, job: StoredJob, footprint: dict[str, Any]) -> None:
        """Keep the statistics of an ended job."""
        self._database.execute(
            "update jobs set footprint = ? where cluster = ? and job = ? and start = ?",
            (json.dumps(footprint), job.cluster, job.job, job.start),
        )

    def find(self, cluster: str, job: str) -> list[StoredJob]:
        """Return the runs of a job, the earliest first. Without a cluster: of all clusters."""
        return self._select(
            "job = ? and (cluster = ? or ? = '') order by start", (job, cluster, cluster)
        )

    def find_ended(self, since: int) -> list[StoredJob]:
        """Return the jobs that ended since a time and have no footprint, the earliest first."""
        return self._select(
            "stop >= ? and footprint is null order by stop limit ?", (since, _MOST_ENDED)
        )

    def _select(self, condition: str, values: tuple[str | int, ...]) -> list[StoredJob]:
        found: list[StoredJob] = []
        for row in self._database.execute(f"{_ALL} where {condition}", values):
            try:
                found.append(_job(row))
            except (ValueError, TypeError) as error:
                logger.error("table of jobs: job %s can't be read: %s", row[1], error)
        return found

    def remove_before(self, time: int) -> int:
        """Delete the jobs that ended before a time; return their number."""
        return self._database.execute("delete from jobs where stop < ?", (time,)).rowcount


def open_job_table(path: str) -> JobTable:
    """Open the table; a damaged file is set aside. Raises sqlite3.Error."""
    try:
        return JobTable(path)
    except sqlite3.OperationalError:
        raise  # a full disk or missing rights: the file itself is good
    except sqlite3.DatabaseError as error:
        logger.error("%s: %s; set aside as %s.damaged", path, error, path)
        os.replace(path, f"{path}.damaged")
        return JobTable(path)


def open_jobs(path: str) -> JobTable:
    """Open the table of jobs. Raises ConfigurationError."""
    try:
        return open_job_table(path)
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path}: {error}; check the disk and the rights") from error


def find_ended_jobs(table: JobTable, since: int) -> list[StoredJob]:
    """Return the ended jobs that the last run left without a footprint."""
    try:
        return table.find_ended(since)
    except sqlite3.Error as error:
        logger.error("table of jobs: %s; some footprints are missing", error)
        return []


class JobEvents:
    """Takes events out of lines, and writes them to a table.

    ended: called with each job that has ended.
    """

    def __init__(self, table: JobTable) -> None:
        self.ended: list[StoredJob] = []
        self.refused = 0
        self._table = table

    def take(self, line: Line) -> None:
        """Take the line of an event; others are passed over. A bad one is logged."""
        if line.measurement != "job" or line.field != "event" or not isinstance(line.value, str):
            return
        try:
            self._take(line.tags.get("function", ""), line.value.encode("utf-8", "replace"))
        except (sqlite3.Error, ValueError, OverflowError, RecursionError) as error:
            self.refused += 1
            logger.warning("job event: %s; left out", error)

    def take_envelope(self, text: bytes) -> int:
        """Take the jobs of an envelope of kind `job`; return their number.

        Raises UnparsableError, and sqlite3.Error if they can't be kept now.
        """
        try:
            jobs = list(read_envelope(json.loads(text)))
            for job in jobs:
                self._table.start(job)
                if job.stop is not None:
                    self._end(job)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise UnparsableError(f"no envelope of jobs: {error}") from error
        return len(jobs)

    def _take(self, function: str, text: bytes) -> None:
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
            job = self._table.stop(
                stopped.cluster, str(stopped.job_id), stopped.start_time, stopped.stop_time,
                stopped.job_state or "completed",
            )  # fmt: skip
            if job is None:
                self.refused += 1
                logger.warning("job event: job %d does not run; left out", stopped.job_id)
            else:
                self._end(job)

    def _end(self, job: StoredJob) -> None:
        self.ended.append(job)
        del self.ended[:-_MOST_ENDED]


def _job(row: tuple[Any, ...]) -> StoredJob:
    *fields, nodes, footprint, details = row
    cluster, job, user, state, start, stop = fields
    kept = json.loads(footprint) if footprint else None
    return StoredJob(
        cluster, job, user, state, start, stop, tuple(json.loads(nodes)), kept, _details(details)
    )


def _details(text: str | None) -> StoredJobDetails:
    """Return kept details; those that another release has kept in another form are unknown."""
    try:
        return msgspec.json.decode(text or "{}", type=StoredJobDetails)
    except msgspec.DecodeError:
        return StoredJobDetails()


def read_envelope(envelope: object) -> Iterable[StoredJob]:
    """Yield the jobs of an envelope of the agent `jobs`; steps belong to their job."""
    attributes = as_table(as_table(as_table(envelope).get("data")).get("attributes"))
    cluster = str(attributes.get("cluster", ""))
    for each in as_list(attributes.get("slurm_jobs")):
        job = as_table(each)
        if job.get("job_step") or not job.get("start_time"):
            continue
        yield _envelope_job(cluster, job)


def _envelope_job(cluster: str, job: dict[str, Any]) -> StoredJob:
    def seconds(text: object) -> int:
        return int(datetime.fromisoformat(str(text)).timestamp())

    end = job.get("end_time")
    nodes = tuple(name for one in as_list(job.get("nodes")) for name in expand(str(one)))
    return StoredJob(
        cluster, str(job["job_id"]), str(job.get("user_name", "")),
        str(job.get("job_state", "")).lower(), seconds(job["start_time"]),
        seconds(end) if end else None, nodes, details=read_details(job),
    )  # fmt: skip
