"""The schema of the jobstats store, with and without TimescaleDB."""

from __future__ import annotations

import re
from string import Template
from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError
from ccagent.stores.database import MigrationSet

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.stores.database import Migration
    from ccagent.stores.jobstats.settings import SeriesTableSettings

MIGRATIONS = MigrationSet("ccagent.stores.jobstats", "migrations", 0x6A6F6273746174)
_OLDEST_TIMESCALE = [2, 11]
"""The first one with UPDATE, and INSERT with a unique index, in compressed chunks."""


def has_timescale(connection: Connection[Any]) -> bool:
    """Return whether the database has TimescaleDB with compression and continuous aggregates.

    Its Apache edition lacks both, and counts as no TimescaleDB. Raise ConfigurationError if it is
    too old.
    """
    query = (
        "SELECT current_setting('timescaledb.license', true), extversion FROM pg_extension "
        "WHERE extname = 'timescaledb'"
    )
    license_name, version = connection.execute(query).fetchone() or ("", "")
    if license_name != "timescale":
        return False
    parts = re.findall(r"\d+", version)
    if [int(part) for part in parts] < _OLDEST_TIMESCALE:
        raise ConfigurationError(
            f"database: TimescaleDB {version} stores no late rows in compressed chunks: "
            f"{'.'.join(map(str, _OLDEST_TIMESCALE))} or later is required: ALTER EXTENSION "
            "timescaledb UPDATE"
        )
    return True


def pending_migrations(connection: Connection[Any]) -> list[Migration]:
    """Return the pending migrations.

    Raise ConfigurationError if the database is newer than this ccagent.
    """
    return MIGRATIONS.pending(connection, _engine(is_timescale=has_timescale(connection)))


def migrate(connection: Connection[Any], settings: SeriesTableSettings) -> list[Migration]:
    """Apply and return the pending migrations. Wait for another migrating process for a while.

    The connection is in autocommit. Raise ConfigurationError, psycopg.Error.
    """
    is_timescale = has_timescale(connection)
    return MIGRATIONS.migrate(
        connection,
        _engine(is_timescale=is_timescale),
        lambda one: fill_migration(one, settings, is_timescale=is_timescale),
    )


def fill_migration(one: Migration, settings: SeriesTableSettings, *, is_timescale: bool) -> str:
    """Return the text of a migration with values for its placeholders."""
    return Template(one.text).substitute(
        partition_by_time="" if is_timescale else "PARTITION BY RANGE (timestamp)",
        chunk_interval=f"{int(settings.partition.seconds)} seconds",
    )


def _engine(*, is_timescale: bool) -> str:
    return "timescaledb" if is_timescale else "plain"
