"""Database administration from the command line, with or without a running store."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from ccagent.errors import ConfigurationError, LockedError, NotHereError
from ccagent.log import printable
from ccagent.senders import describe_sender
from ccagent.stores.database import Database, DatabaseAwayError, describe_error
from ccagent.stores.jobstats.embedded import EmbeddedPostgres, find_running
from ccagent.stores.jobstats.housekeeping import keep_house
from ccagent.stores.jobstats.schema import (
    KINDS,
    MIGRATIONS,
    TimePartitions,
    fill_migration,
    has_timescale,
    list_partitions,
    migrate,
    pending_migrations,
)
from ccagent.stores.metrics.checking import ask_store

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.stores.jobstats.settings import JobstatsStoreSettings

_START_WITHIN = 120.0


@contextlib.contextmanager
def open_connection(
    settings: JobstatsStoreSettings,
) -> Generator[psycopg.Connection[Any], None, None]:
    """Open a connection in autocommit to the store's database. Start PostgreSQL if embedded.

    Raise ConfigurationError if the database is not reachable or refuses a statement.
    """
    postgres: EmbeddedPostgres | None = None
    url = settings.database
    try:
        if settings.data:
            try:
                postgres = EmbeddedPostgres(
                    settings.data, settings.database_user, settings.connections
                )
                url = postgres.url
            except LockedError:
                # The store is running, with its PostgreSQL.
                url = find_running(settings.data)
        database = Database(url, connections=1, password_file=settings.password_file)
        with _connect(database, patient=postgres is not None) as connection:
            yield connection
    except psycopg.Error as error:
        raise ConfigurationError(f"database: {describe_error(error)}") from None
    except DatabaseAwayError as error:
        raise ConfigurationError(str(error)) from None
    finally:
        if postgres is not None:
            postgres.stop()


def migrate_now(settings: JobstatsStoreSettings, *, is_dry: bool) -> list[str]:
    """Apply the pending migrations. Return a line for each; for a dry run, return their SQL."""
    with open_connection(settings) as connection:
        if is_dry:
            is_timescale = has_timescale(connection)
            return [
                fill_migration(one, settings.series, is_timescale=is_timescale)
                for one in pending_migrations(connection)
            ] or ["-- the schema is up to date"]
        applied = migrate(connection, settings.series)
        return [f"applied {one.number:04} {one.name}" for one in applied] or [
            "the schema is up to date"
        ]


def apply_retention(settings: JobstatsStoreSettings) -> list[str]:
    """Apply the retention. Return lines about the result."""
    with open_connection(settings) as connection:
        if not MIGRATIONS.applied(connection):
            return ["the database has no tables: run `ccagent store jobstats migrate`"]
        partitions = (
            None
            if has_timescale(connection)
            else TimePartitions(int(settings.series.partition.seconds))
        )
        dropped = keep_house(connection, settings.series, partitions, datetime.now(UTC))
        what = "chunks" if partitions is None else "partitions"
        return [f"dropped {dropped} {what} older than {settings.series.retention}"]


def describe_state(settings: JobstatsStoreSettings) -> tuple[list[str], bool]:
    """Return lines about the running store and its database, and whether both respond."""
    lines, is_well = _ask_store(settings)
    try:
        with open_connection(settings) as connection:
            lines += _describe_database(connection, settings)
    except ConfigurationError as error:
        return [*lines, f"database      {error}"], False
    return lines, is_well


def _describe_database(
    connection: psycopg.Connection[Any], settings: JobstatsStoreSettings
) -> list[str]:
    applied = MIGRATIONS.applied(connection)
    pending = pending_migrations(connection)
    is_timescale = has_timescale(connection)
    version = connection.info.server_version
    lines = [
        f"database      PostgreSQL {version // 10000}.{version % 10000}, "
        + ("TimescaleDB" if is_timescale else "without TimescaleDB: partitions by time"),
        f"schema        {applied[-1] if applied else 0}"
        + (f", {len(pending)} migrations pending" if pending else ""),
        f"retention     {settings.series.retention}",
    ]
    if not applied:
        return lines
    for kind in KINDS:
        if is_timescale:
            query = "SELECT count(*), coalesce(sum(total_bytes), 0) FROM chunks_detailed_size(%s)"
            count, size = connection.execute(query, [kind]).fetchone() or (0, 0)
            lines.append(f"{kind:13} {count} chunks, {int(size) / 1e6:.1f} MB")
            continue
        parts = list_partitions(connection, kind)
        query = (
            "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits "
            "WHERE inhparent = to_regclass(%s)"
        )
        (size,) = connection.execute(query, [kind]).fetchone() or (0,)
        span = f" from {parts[0][1]:%Y-%m-%d} to {parts[-1][2]:%Y-%m-%d}" if parts else ""
        lines.append(f"{kind:13} {len(parts)} partitions{span}, {int(size) / 1e6:.1f} MB")
    series, jobs = connection.execute(
        "SELECT (SELECT count(*) FROM metadata), (SELECT count(*) FROM jobs)"
    ).fetchone() or (0, 0)
    return [*lines, f"series        {series}", f"jobs          {jobs}"]


def _ask_store(settings: JobstatsStoreSettings) -> tuple[list[str], bool]:
    """Return the counters of the running store as lines, and whether it responds."""
    try:
        answer = ask_store(settings.listen, settings.tls, "/status")
    except NotHereError as error:
        return [f"store         {error}"], False
    if answer.status == 401:
        return [f"store         runs at {settings.listen}; its numbers need a token"], True
    try:
        numbers = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return [f"store         {settings.listen}: status {answer.status}"], False
    senders = numbers.pop("senders", [])
    return [
        *(f"{name:16} {value}" for name, value in numbers.items()),
        *(f"sender           {printable(describe_sender(one))}" for one in senders),
    ], True


def _connect(database: Database, *, patient: bool) -> psycopg.Connection[Any]:
    """Connect. patient: retry while a server is starting. Raise DatabaseAwayError."""
    deadline = time.monotonic() + (_START_WITHIN if patient else 0.0)
    while True:
        try:
            return database.connect_alone()
        except DatabaseAwayError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
