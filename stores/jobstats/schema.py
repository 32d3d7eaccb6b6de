"""The schema of the jobstats store: columns of counters, migrations, and parts of tables by time.

Parts are partitions, or chunks of TimescaleDB, which have compression, too. The store itself
applies the retention of observations to both.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from psycopg import sql

from ccagent.errors import ConfigurationError
from ccagent.stores.database import MigrationSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

    from ccagent.stores.database import Migration
    from ccagent.stores.jobstats.settings import SeriesTableSettings

TargetKind = Literal["ost", "mdt"]
"""The kind of a target, and the name of its table."""

MDT = (
    "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr", "setattr",
    "getxattr", "setxattr", "statfs", "sync", "samedir_rename", "crossdir_rename",
)  # fmt: skip
OST = (
    "read_bytes", "write_bytes", "read", "write", "setattr", "punch", "sync", "get_info",
    "set_info", "quotactl",
)  # fmt: skip

METADATA = tuple(name for name in MDT if name not in {"samedir_rename", "crossdir_rename"})
"""Operations of an MDT that are added up. The two left out are counted as `rename`, too."""

COLUMNS: dict[TargetKind, tuple[str, ...]] = {"ost": OST, "mdt": MDT}
"""The counter columns of the tables. Other operations are in the column `others`."""

KINDS: tuple[TargetKind, ...] = ("ost", "mdt")

PARTS = ("job_id", "user_id", "user", "group_id", "nodename", "executable", "process_id")
"""Parts of an entry's id, if the sender has parsed it."""

FIELDS = frozenset({
    "time_series_id", "target", "entry_id", "timestamp", "snapshot_time", "start_time", "server",
    "malformed", "reset", "clock_step", *PARTS,
})  # fmt: skip
"""The fields of a record that are not counters."""

RESETS = ("start_time", "absent", "decreased", "snapshot_gap")

LARGEST_COUNTER = 2**64 - 1

MIGRATIONS = MigrationSet("ccagent.stores.jobstats", "migrations", 0x6A6F6273746174)

_TARGET = re.compile(r"-(MDT|OST)[0-9a-fA-F]{4}$")
_MDT_ONLY = frozenset(MDT) - {*OST, "getattr", "statfs"}

_OLDEST_TIMESCALE = [2, 11]
"""The first one with UPDATE, and INSERT with a unique index, in compressed chunks."""

_BOUNDS = re.compile(r"FROM \('([^']+)'\) TO \('([^']+)'\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUMS = tuple(f"{kind}_sums" for kind in KINDS)
_PARTITIONED = (*_SUMS, *KINDS)
"""Tables with partitions. `mdt` is last: if it has a partition, all tables have it."""
_LIST = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid)
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%s)
"""
_WITHOUT_STATISTICS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attstattarget = 0
"""
_HYPERTABLES = (*KINDS, *_SUMS)
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


def kind_by_name(target: str) -> TargetKind | None:
    """Return the kind of a target from its name; None if the name has no kind."""
    match = _TARGET.search(target)
    if match is None:
        return None
    return "mdt" if match[1] == "MDT" else "ost"


def file_system_of(target: str) -> str:
    """Return the file system of a target: its name without its last part."""
    return target.rpartition("-")[0] or target


def kind_by_operations(fields: Iterable[str]) -> TargetKind:
    """Return the kind of a target from the fields of a record."""
    return "ost" if _MDT_ONLY.isdisjoint(fields) else "mdt"


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


class TimePartitions:
    """Creates the partitions for observations.

    seconds: length of a partition. Existing partitions of another length are kept.
    """

    def __init__(self, seconds: int) -> None:
        self._width = timedelta(seconds=seconds)
        self._covered: list[tuple[datetime, datetime]] = []

    def ensure(self, connection: Connection[Any], times: Iterable[datetime]) -> bool:
        """Create missing partitions for these times, in the connection's transaction.

        Return whether a partition is not cached: call `remember` after the commit.
        """
        missing = {self._start(time) for time in times if not self._is_covered(time)}
        if not missing:
            return False
        # One process at a time. Partitions that another process has just created are visible.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('partitions', 0))")
        for table in _PARTITIONED:
            covered = list_partitions(connection, table)
            for wanted in sorted(missing):
                start, end = _fit(wanted, wanted + self._width, covered)
                if start < end:
                    _create(connection, table, start, end)
                    covered.append(("", start, end))
        return True

    def remember(self, connection: Connection[Any]) -> None:
        """Cache the committed partitions."""
        self._covered = [(start, end) for _, start, end in list_partitions(connection, "mdt")]

    def forget(self) -> None:
        """Clear the cache, so that the next rows check their partitions again."""
        self._covered = []

    def ensure_ahead(self, connection: Connection[Any], now: datetime) -> None:
        """Create the present partition and the next two."""
        self.ensure(connection, [now + each * self._width for each in range(3)])

    def _is_covered(self, time: datetime) -> bool:
        return any(start <= time < end for start, end in self._covered)

    def _start(self, time: datetime) -> datetime:
        return _EPOCH + (time - _EPOCH) // self._width * self._width


def list_partitions(
    connection: Connection[Any], table: str
) -> list[tuple[str, datetime, datetime]]:
    """Return name, start and end of the partitions of a table, sorted by start."""
    found: list[tuple[str, datetime, datetime]] = []
    for name, bounds in connection.execute(_LIST, [table]):
        match = _BOUNDS.search(bounds or "")
        if match is not None:
            start, end = (datetime.fromisoformat(text).astimezone(UTC) for text in match.groups())
            found.append((name, start, end))
    return sorted(found, key=lambda one: one[1])


def drop_partitions(connection: Connection[Any], before: datetime) -> int:
    """Drop the partitions that end before a time. Return their number."""
    dropped = 0
    for table in _PARTITIONED:
        for name, _, end in list_partitions(connection, table):
            if end <= before:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '5s'")
                    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
                dropped += 1
    return dropped


def _fit(
    start: datetime, end: datetime, covered: list[tuple[str, datetime, datetime]]
) -> tuple[datetime, datetime]:
    """Return the part of a time range that existing partitions of another length leave free."""
    for _, first, last in sorted(covered, key=lambda one: one[1]):
        if first <= start < last:
            start = last
        elif start < first < end:
            end = first
    return start, end


def _create(connection: Connection[Any], table: str, start: datetime, end: datetime) -> None:
    """Create and attach a partition. ATTACH does not wait for queries of the table.

    LIKE does not copy which columns have no statistics.
    """
    name = sql.Identifier(f"{table}_{start:%Y%m%d_%H%M}")
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(name, sql.Identifier(table))
    )
    found = connection.execute(_WITHOUT_STATISTICS, [table]).fetchall()
    change = sql.SQL("ALTER {} SET STATISTICS 0")
    changes = sql.SQL(", ").join(change.format(sql.Identifier(column)) for (column,) in found)
    if found:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(name, changes))
    connection.execute(
        sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            sql.Identifier(table), name, sql.Literal(start), sql.Literal(end)
        )
    )


def apply_policies(connection: Connection[Any], settings: SeriesTableSettings) -> None:
    """Set length and compression of chunks. The connection is in autocommit.

    A value is set once, and again only after the configuration has changed: what an administrator
    has set in the database stays.
    """
    chunk = str(int(settings.partition.seconds))
    compressed = str(int(settings.compress_after.seconds))
    for table in _HYPERTABLES:
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
    for table in _HYPERTABLES:
        query = "SELECT drop_chunks(%s::regclass, older_than => %s::timestamptz)"
        with connection.transaction():
            lock_compressed_chunks(connection)
            # Transactions with late rows wait for this one.
            connection.execute("SET LOCAL lock_timeout = '10s'")
            dropped += len(connection.execute(query, [table, before]).fetchall())
    return dropped
