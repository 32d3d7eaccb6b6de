"""TimescaleDB's policies: compression and continuous aggregates.

The store itself applies the retention of observations, with and without TimescaleDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.stores.jobstats.operations import KINDS, sums_table

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import Connection

    from ccagent.stores.jobstats.settings import SeriesTableSettings

_HOUR = 3600.0
_REFRESHED = 3 * 86400.0
"""Maximum age in s of late observations that change the hourly sums."""


def list_policies(settings: SeriesTableSettings) -> list[str]:
    """Return SQL statements that set the policies."""
    statements: list[str] = []
    for table in KINDS:
        hourly = f"{table}_hourly"
        refreshed = min(_REFRESHED, settings.retention.seconds)
        aggregate = (
            f"start_offset => {_interval(refreshed)}, end_offset => {_interval(_HOUR)}, "
            f"schedule_interval => {_interval(_HOUR / 2)}"
        )
        chunk, compressed, kept = (
            _interval(each.seconds)
            for each in (settings.partition, settings.compress_after, settings.hourly_retention)
        )
        statements += [
            f"SELECT set_chunk_time_interval('{table}', {chunk})",
            f"SELECT remove_compression_policy('{table}', if_exists => true)",
            f"SELECT add_compression_policy('{table}', {compressed})",
            f"SELECT remove_continuous_aggregate_policy('{hourly}', if_exists => true)",
            f"SELECT add_continuous_aggregate_policy('{hourly}', {aggregate})",
            f"SELECT remove_retention_policy('{hourly}', if_exists => true)",
            f"SELECT add_retention_policy('{hourly}', {kept})",
        ]
    return statements


def apply_policies(connection: Connection[Any], settings: SeriesTableSettings) -> None:
    """Set the policies from the settings. The connection is in autocommit."""
    for statement in list_policies(settings):
        connection.execute(statement.encode())


def drop_chunks(connection: Connection[Any], before: datetime) -> int:
    """Drop the chunks that end before a time. Return their number."""
    dropped = 0
    for table in (*KINDS, *map(sums_table, KINDS)):
        query = "SELECT drop_chunks(%s::regclass, older_than => %s::timestamptz)"
        dropped += len(connection.execute(query, [table, before]).fetchall())
    return dropped


def _interval(seconds: float) -> str:
    return f"INTERVAL '{int(seconds)} seconds'"
