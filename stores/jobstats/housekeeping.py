"""Periodic work of the store: migrations, future partitions, retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.stores.database import DatabaseAwayError, describe_error, is_transient
from ccagent.stores.jobstats.schema import (
    KINDS,
    TimePartitions,
    apply_policies,
    drop_chunks,
    drop_partitions,
    has_timescale,
    keep_option,
    migrate,
    read_option,
)
from ccagent.stores.jobstats.sums import forget_sums

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg import Connection

    from ccagent.stores.database import Database
    from ccagent.stores.jobstats.series import ClusterRules, EntryFormats
    from ccagent.stores.jobstats.settings import SeriesTableSettings

_LOCK = 0x6A6F62736B656570  # "jobskeep"
_REMOVE_SERIES = """
DELETE FROM metadata m
WHERE first_seen < %s
    AND NOT EXISTS (SELECT FROM ost_last o WHERE o.time_series_id = m.time_series_id)
    AND NOT EXISTS (SELECT FROM mdt_last o WHERE o.time_series_id = m.time_series_id)
"""
_REMOVE_LAST = """
DELETE FROM {table}_last l WHERE timestamp < %s
    AND NOT EXISTS (
        SELECT FROM {table} o WHERE o.time_series_id = l.time_series_id AND o.server = l.server
    )
"""
_SET_CLUSTERS = """
UPDATE metadata m SET cluster = n.name
FROM unnest(%s::uuid[], %s::text[]) AS n (time_series_id, name)
WHERE m.time_series_id = n.time_series_id
"""
_BATCH = 10_000
_REMOVE_STATES = "DELETE FROM target_state WHERE timestamp < %s"
_REMOVE_JOBS = "DELETE FROM jobs WHERE coalesce(end_time, reported) < %s AND reported < %s"


def prepare_database(
    database: Database,
    settings: SeriesTableSettings,
    formats: EntryFormats,
    namespaces: dict[str, UUID],
    clusters: ClusterRules,
) -> TimePartitions | None:
    """Migrate a database. Return the creator of its partitions; None with TimescaleDB.

    namespaces: from the file; missing ones are read from or created in the database, and added.
    Raise ConfigurationError, DatabaseAwayError.
    """
    with database.connect_alone() as connection:
        try:
            migrate(connection, settings)
            for form in formats.names:
                if form not in namespaces:
                    namespaces[form] = _find_namespace(connection, form)
            _apply_clusters(connection, clusters)
            return _prepare_tables(connection, settings)
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) or is_transient(error):
                raise DatabaseAwayError(
                    f"database {database.place}: {describe_error(error)}"
                ) from error
            raise ConfigurationError(
                f"database {database.place}: {describe_error(error)}"
            ) from None


def _apply_clusters(connection: Connection[Any], clusters: ClusterRules) -> None:
    """Set the cluster of all series again, after the rules have changed."""
    with connection.transaction():
        if clusters.text == (read_option(connection, "clusters") or "{}"):
            return
        rows = connection.execute(
            "SELECT time_series_id, target, nodename, format, cluster FROM metadata"
        ).fetchall()
        changed = [
            (series, new)
            for series, target, node, form, old in rows
            if (new := clusters.find(target, node, form)) != old
        ]
        for begin in range(0, len(changed), _BATCH):
            ids, names = zip(*changed[begin : begin + _BATCH], strict=True)
            connection.execute(_SET_CLUSTERS, [list(ids), list(names)])
        keep_option(connection, "clusters", clusters.text)
    logger.info("clusters: the rules have changed, and %d series with them", len(changed))


def _prepare_tables(
    connection: Connection[Any], settings: SeriesTableSettings
) -> TimePartitions | None:
    """Set TimescaleDB's policies, or create the first partitions."""
    if has_timescale(connection):
        apply_policies(connection, settings)
        return None
    logger.info("no TimescaleDB: using partitions of %s", settings.partition)
    partitions = TimePartitions(int(settings.partition.seconds))
    with connection.transaction():
        partitions.ensure_ahead(connection, datetime.now(UTC))
    partitions.remember(connection)
    return partitions


def keep_house(
    connection: Connection[Any],
    settings: SeriesTableSettings,
    partitions: TimePartitions | None,
    now: datetime,
) -> int:
    """Create future partitions and apply the retention. Return the number of dropped partitions.

    Only one of several stores does this at a time. The connection is in autocommit.
    """
    if connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() != (True,):
        return 0
    try:
        before = now - timedelta(seconds=settings.retention.seconds)
        forget_sums(connection, before)
        if partitions is not None:
            with connection.transaction():
                partitions.ensure_ahead(connection, now)
            dropped = drop_partitions(connection, before)
            partitions.remember(connection)
        else:
            dropped = drop_chunks(connection, before)
        for kind in KINDS:
            connection.execute(_REMOVE_LAST.format(table=kind).encode(), [before])
        connection.execute(_REMOVE_SERIES, [before])
        connection.execute(_REMOVE_STATES, [before])
        connection.execute(_REMOVE_JOBS, [before, before])
        return dropped
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def _find_namespace(connection: Connection[Any], form: str) -> UUID:
    """Return the namespace of a format. The database creates a random one if it is missing."""
    connection.execute("INSERT INTO namespaces (format) VALUES (%s) ON CONFLICT DO NOTHING", [form])
    row = connection.execute(
        "SELECT namespace FROM namespaces WHERE format = %s", [form]
    ).fetchone()
    if row is None:
        raise ConfigurationError("database: the table namespaces can't be read")
    found: UUID = row[0]
    return found
