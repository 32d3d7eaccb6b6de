"""Migrations: numbered SQL files, each applied once, in a transaction."""

from __future__ import annotations

import re
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import ConfigurationError
from ccagent.log import logger

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.stores.jobstats.settings import SeriesTableSettings

_PACKAGE = "ccagent.stores.jobstats.migrations"
_NAME = re.compile(r"(\d{4})_([a-z_]+)(?:\.(plain|timescaledb))?\.sql")
_LOCK = 0x6A6F6273746174  # "jobstat"
_OLDEST = 140_000
"""The first PostgreSQL version with date_bin."""


class Migration(NamedTuple):
    """A migration file. engine: `plain` or `timescaledb`; empty for both."""

    number: int
    name: str
    engine: str
    text: str


def list_migrations() -> list[Migration]:
    """Return all migrations, in the order of their numbers."""
    found: list[Migration] = []
    for file in resources.files(_PACKAGE).iterdir():
        match = _NAME.fullmatch(file.name)
        if match is not None:
            text = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], match[3] or "", text))
    return sorted(found)


def has_timescale(connection: Connection[Any]) -> bool:
    """Return whether the database has TimescaleDB with compression and continuous aggregates.

    Its Apache edition lacks both, and counts as no TimescaleDB.
    """
    query = (
        "SELECT current_setting('timescaledb.license', true) FROM pg_extension "
        "WHERE extname = 'timescaledb'"
    )
    return connection.execute(query).fetchone() == ("timescale",)


def applied_migrations(connection: Connection[Any]) -> list[int]:
    """Return the numbers of the applied migrations."""
    if connection.execute("SELECT to_regclass('migrations') IS NULL").fetchone() == (True,):
        return []
    return [number for (number,) in connection.execute("SELECT number FROM migrations ORDER BY 1")]


def pending_migrations(connection: Connection[Any]) -> list[Migration]:
    """Return the pending migrations.

    Raise ConfigurationError if the database is newer than this ccagent.
    """
    engine = "timescaledb" if has_timescale(connection) else "plain"
    applied = applied_migrations(connection)
    known = list_migrations()
    newest = max(one.number for one in known)
    if applied and applied[-1] > newest:
        raise ConfigurationError(
            f"database: its schema has version {applied[-1]}, this ccagent supports {newest}: "
            "install the ccagent that created the schema, or a later one"
        )
    return [one for one in known if one.number not in applied and one.engine in {"", engine}]


def check_server(connection: Connection[Any]) -> None:
    """Raise ConfigurationError if the server's version or encoding is not supported."""
    version = connection.info.server_version
    if version < _OLDEST:
        raise ConfigurationError(
            f"database: PostgreSQL {version // 10000} is too old: {_OLDEST // 10000} is required"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigurationError(
            f"database {connection.info.dbname}: its encoding is {encoding}: create one with "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


def migrate(connection: Connection[Any], settings: SeriesTableSettings) -> list[Migration]:
    """Apply and return the pending migrations. Wait for another migrating process for a while.

    The connection is in autocommit. Raise ConfigurationError, psycopg.Error.
    """
    check_server(connection)
    connection.execute("SET lock_timeout = '10s'")
    connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations ("
            "number integer PRIMARY KEY, name text NOT NULL, "
            "applied timestamptz NOT NULL DEFAULT now())"
        )
        pending = pending_migrations(connection)
        is_timescale = has_timescale(connection)
        for one in pending:
            text = fill_migration(one, settings, is_timescale=is_timescale)
            with connection.transaction():
                connection.execute(text.encode())
                connection.execute(
                    "INSERT INTO migrations (number, name) VALUES (%s, %s)", [one.number, one.name]
                )
            logger.info("database: applied migration %d (%s)", one.number, one.name)
        return pending
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def fill_migration(one: Migration, settings: SeriesTableSettings, *, is_timescale: bool) -> str:
    """Return the text of a migration with values for its placeholders."""
    return Template(one.text).substitute(
        partition_by_time="" if is_timescale else "PARTITION BY RANGE (timestamp)",
        chunk_interval=f"{int(settings.partition.seconds)} seconds",
    )
