"""The table of jobs in PostgreSQL, which several stores and gateways share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

from ccagent.errors import ConfigurationError
from ccagent.stores.database import Database, DatabaseAwayError, MigrationSet, describe_error
from ccagent.stores.metrics.job_table import JobTable, JobTableError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from psycopg import Connection

    from ccagent.stores.metrics.job_table import StoredJob, WaitingJob

MIGRATIONS = MigrationSet("ccagent.stores.metrics", "job_migrations", 0x6A6F6272756E73)

_WAIT = 0.2
"""Seconds until a connection is free. Requests wait meanwhile."""

_LIMITS = {"options": "-c statement_timeout=3000", "tcp_user_timeout": "3000"}
"""Limits in ms for a database that does not answer."""


class SharedJobTable(JobTable):
    """Jobs in PostgreSQL. The database may be unavailable at the start."""

    def __init__(self, url: str, password_file: str = "") -> None:
        """Start connecting in the background. Raise ConfigurationError."""
        self._pool = Database(
            url, connections=1, password_file=password_file, wait=_WAIT, defaults=_LIMITS
        )
        self._connection: Connection[Any] | None = None
        self._is_prepared = False
        self._pool.open()

    def reopen(self) -> None:
        """Do nothing: the pool connects again."""

    def check_file(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """Execute several changes as one transaction. Raise JobTableError, ValueError."""
        if self._connection is not None:
            yield
            return
        with self._lend() as connection:
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None

    def start(self, job: StoredJob, admit: Callable[[int], object] | None = None) -> None:
        """Add or update a job, as a transaction, because other stores change it too."""
        with self.transaction():
            super().start(job, admit)

    def wait(self, job: WaitingJob, admit: Callable[[int], object] | None = None) -> None:
        """Do nothing: the pages, which show waiting jobs, have a table of their own."""

    def leave(self, cluster: str, job: str) -> None:
        """Do nothing."""

    def forget_waiting(self, time: int) -> None:
        """Do nothing."""

    def find(self, cluster: str, job: str) -> list[StoredJob]:
        """Return the runs of a job, earliest first. cluster empty: of all clusters."""
        try:
            return super().find(cluster, job)
        except ValueError:  # a name that PostgreSQL can't store, such as one with NUL
            return []

    def _execute(self, query: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        text = query.replace("{jobs}", "job_runs").replace("{lock}", " for update")
        text = text.replace("?", "%s")
        if self._connection is not None:
            return _rows(self._connection, text.encode(), values)
        with self._lend() as connection:
            return _rows(connection, text.encode(), values)

    @contextlib.contextmanager
    def _lend(self) -> Generator[Connection[Any]]:
        """Lend a connection. Raise JobTableError; ValueError for values that can't be stored."""
        try:
            if not self._is_prepared:
                self._prepare()
            with self._pool.connection() as connection:
                yield connection
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise ValueError(describe_error(error)) from error
        except psycopg.Error as error:
            raise JobTableError(f"database {self._pool.place}: {describe_error(error)}") from error
        except (DatabaseAwayError, ConfigurationError) as error:
            raise JobTableError(str(error)) from error

    def _prepare(self) -> None:
        with self._pool.connection() as connection:
            connection.autocommit = True
            try:
                MIGRATIONS.migrate(connection)
            finally:
                if not connection.closed:
                    connection.autocommit = False
        self._is_prepared = True


def _rows(
    connection: Connection[Any], query: bytes, values: Sequence[Any]
) -> tuple[list[tuple[Any, ...]], int]:
    cursor = connection.execute(query, values)
    return cursor.fetchall() if cursor.description else [], cursor.rowcount
