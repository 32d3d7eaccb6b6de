"""Partitions of the tables by time, for databases without TimescaleDB."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg import sql

from ccagent.stores.jobstats.operations import KINDS, sums_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

_BOUNDS = re.compile(r"FROM \('([^']+)'\) TO \('([^']+)'\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TABLES = (*map(sums_table, KINDS), *KINDS)
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
        for table in _TABLES:
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
    for table in _TABLES:
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
