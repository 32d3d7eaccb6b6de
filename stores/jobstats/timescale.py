"""TimescaleDB's chunks: compression, retention, and late rows.

The store itself applies the retention of observations, with and without TimescaleDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from ccagent.stores.jobstats.operations import KINDS, sums_table

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import Connection

    from ccagent.stores.jobstats.settings import SeriesTableSettings

_TABLES = (*KINDS, *map(sums_table, KINDS))
_FIND_JOB = """
SELECT job_id FROM timescaledb_information.jobs
WHERE hypertable_name = %s AND hypertable_schema = current_schema()
    AND proc_name IN ('policy_compression', 'policy_recompression')
"""
_LOCK_LATE = sql.SQL("SELECT pg_advisory_xact_lock({})").format(0x6A6F62736C617465)  # "jobslate"
_LATER_CHUNKS = """
SELECT chunk_schema, chunk_name FROM timescaledb_information.chunks
WHERE hypertable_name = %s AND hypertable_schema = current_schema() AND range_end > %s
ORDER BY range_start
"""


def apply_policies(connection: Connection[Any], settings: SeriesTableSettings) -> None:
    """Set length and compression of chunks. The connection is in autocommit.

    A value is set once, and again only after the configuration has changed: what an administrator
    has set in the database stays.
    """
    chunk = str(int(settings.partition.seconds))
    compressed = str(int(settings.compress_after.seconds))
    for table in _TABLES:
        if read_option(connection, f"{table} chunk") != chunk:
            connection.execute(
                "SELECT set_chunk_time_interval(%s::regclass, %s::interval)",
                [table, f"{chunk} seconds"],
            )
            keep_option(connection, f"{table} chunk", chunk)
        if read_option(connection, f"{table} compress-after") != compressed:
            _set_compression(connection, table, f"{compressed} seconds")
            keep_option(connection, f"{table} compress-after", compressed)


def _set_compression(connection: Connection[Any], table: str, after: str) -> None:
    """Create the policy of a table, or change its age and nothing else."""
    found = connection.execute(_FIND_JOB, [table]).fetchone()
    if found is None:
        connection.execute(
            "SELECT add_compression_policy(%s::regclass, compress_after => %s::interval)",
            [table, after],
        )
    else:
        connection.execute(
            "SELECT alter_job(job_id, "
            "config => jsonb_set(config, '{compress_after}', to_jsonb(%s::text))) "
            "FROM timescaledb_information.jobs WHERE job_id = %s",
            [after, found[0]],
        )


def read_option(connection: Connection[Any], name: str) -> str | None:
    """Return a value that the store has kept in the database; None without one."""
    query = "SELECT value FROM store_options WHERE name = %s"
    found = connection.execute(query, [name]).fetchone()
    return found[0] if found else None


def keep_option(connection: Connection[Any], name: str, value: str) -> None:
    """Keep a value in the database."""
    connection.execute(
        "INSERT INTO store_options VALUES (%s, %s) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [name, value],
    )


def lock_compressed_chunks(connection: Connection[Any]) -> None:
    """Exclude other transactions that store into compressed chunks, or drop chunks.

    Such a chunk has batches of rows of all servers. Each transaction would lock some of them, and
    the chunks' entries in TimescaleDB's catalog, in another order. It locks its servers before.
    """
    connection.execute(_LOCK_LATE)


def allow_late_rows(connection: Connection[Any], table: str, first: datetime) -> None:
    """Prepare a transaction for rows that may belong to compressed chunks.

    first: the earliest row's time. The chunks are locked as for writing before
    the transaction reads them: with a weaker lock first, a concurrent compression of a chunk and
    this transaction would wait for each other.
    """
    lock_compressed_chunks(connection)
    # The limit is for all rows of the transaction, and would refuse the array each time.
    connection.execute(
        "SELECT set_config('timescaledb.max_tuples_decompressed_per_dml_transaction', '0', true)"
    )
    chunks = connection.execute(_LATER_CHUNKS, [table, first]).fetchall()
    if chunks:
        names = sql.SQL(", ").join(sql.Identifier(*chunk) for chunk in chunks)
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(names), prepare=False
        )


def drop_chunks(connection: Connection[Any], before: datetime) -> int:
    """Drop the chunks that end before a time. Return their number."""
    dropped = 0
    for table in _TABLES:
        query = "SELECT drop_chunks(%s::regclass, older_than => %s::timestamptz)"
        with connection.transaction():
            lock_compressed_chunks(connection)
            # Transactions with late rows wait for this one.
            connection.execute("SET LOCAL lock_timeout = '10s'")
            dropped += len(connection.execute(query, [table, before]).fetchall())
    return dropped
