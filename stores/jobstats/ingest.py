"""Ingest of arrays, each in one transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from ccagent.stores.budgets import HourlyBudget
from ccagent.stores.jobstats.database import DatabaseAwayError
from ccagent.stores.jobstats.ingest_sql import STATEMENTS
from ccagent.stores.jobstats.records import check_records, decode_records, move_counters
from ccagent.stores.jobstats.series_cache import SeriesIdDumper
from ccagent.stores.jobstats.sums import LOCK_STORING
from ccagent.stores.jobstats.timescale import allow_late_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from ccagent.stores.jobstats.database import Database
    from ccagent.stores.jobstats.operations import TargetKind
    from ccagent.stores.jobstats.partitions import TimePartitions
    from ccagent.stores.jobstats.records import JobstatsObservation
    from ccagent.stores.jobstats.series_cache import KnownSeries, SeriesCache, SeriesKey

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LARGEST_BIGINT = 2**63 - 1
_MODULUS = 2**64
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('server ' || %s, 0))"


class ArrayCounters(msgspec.Struct):
    """Counters since the start."""

    arrays: int = 0
    records: int = 0
    stored: int = 0
    repeated: int = 0
    expired: int = 0
    late: int = 0
    refused_series: int = 0
    refused_arrays: int = 0
    refused_records: int = 0
    unavailable: int = 0
    jobs: int = 0


class StoredArray(NamedTuple):
    """The number of records of an array by result.

    repeated: already stored. expired: older than the retention. late: existing rows that follow a
    new row, whose deltas were computed again. refused: of new series beyond the limit.
    """

    records: int
    stored: int
    repeated: int
    expired: int
    late: int
    refused: int = 0
    new_series: int = 0


class _NewSeries:
    """Takes new series of an array from a sender's budget, by server."""

    def __init__(self, budget: HourlyBudget, sender: str) -> None:
        self._budget = budget
        self._sender = sender
        self._taken: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._taken)

    def admit(self, server: str) -> bool:
        """Take one for a server. Return False if nothing is left."""
        key = (self._sender, server)
        if not self._budget.take(key):
            return False
        self._taken.append(key)
        return True

    def give_back(self) -> None:
        """Return all: the array is not stored."""
        for key in self._taken:
            self._budget.give_back(key)


class ArrayIngest:
    """Stores arrays. Thread-safe.

    partitions: None with TimescaleDB. counts_first: true to count the whole first record of a
    series.
    """

    def __init__(
        self,
        database: Database,
        cache: SeriesCache,
        partitions: TimePartitions | None,
        *,
        retention: timedelta,
        future: timedelta,
        most_records: int,
        most_series: int = 500_000,
        counts_first: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._cache = cache
        self._partitions = partitions
        self._retention = retention
        self._future = future
        self._most = most_records
        self.budget = HourlyBudget(most_series, lambda: now().timestamp())
        """New series of a sender for a server."""
        self._counts_first = counts_first
        self._now = now
        self.counters = ArrayCounters()

    def store(self, body: bytes, sender: str | None, identity: str = "") -> StoredArray:
        """Store an array completely or not at all. A repeated array changes nothing.

        Records of new series beyond the limit are left out, and counted. sender: the only accepted
        server; None: any. identity: of the sender. Raise RefusedArrayError, DatabaseAwayError.
        """
        now = self._now()
        records = decode_records(body, self._most)
        observations = check_records(records, sender, now + self._future)
        oldest = now - self._retention
        kept = [each for each in observations if each.timestamp >= oldest]
        stored = updated = refused = 0
        new = _NewSeries(self.budget, identity)
        if kept:
            try:
                stored, updated, refused = self._store(kept, new)
            except psycopg.errors.CheckViolation as error:
                # Another process has dropped a partition. The next attempt creates it again.
                if self._partitions is not None:
                    self._partitions.forget()
                raise DatabaseAwayError("database: a partition is missing") from error
        counters = self.counters
        counters.arrays += 1
        counters.records += len(observations)
        counters.stored += stored
        counters.repeated += len(kept) - stored - refused
        counters.refused_series += refused
        counters.expired += len(observations) - len(kept)
        counters.late += updated
        return StoredArray(
            records=len(observations),
            stored=stored,
            repeated=len(kept) - stored - refused,
            expired=len(observations) - len(kept),
            late=updated,
            refused=refused,
            new_series=len(new),
        )

    def _store(
        self, observations: list[JobstatsObservation], new: _NewSeries
    ) -> tuple[int, int, int]:
        """Store observations. Return the numbers of new, updated and refused rows."""
        try:
            return self._store_admitted(observations, new)
        except BaseException:
            new.give_back()
            raise

    def _store_admitted(
        self, observations: list[JobstatsObservation], new: _NewSeries
    ) -> tuple[int, int, int]:
        times = {each.timestamp for each in observations}
        stored = updated = 0
        with self._database.connection() as connection:
            connection.execute(LOCK_STORING)
            # Serialize repeated arrays, and rows that follow each other, by server.
            for server in sorted({each.server for each in observations}):
                connection.execute(_LOCK, [server])
            makes_partitions = self._partitions is not None and not self._partitions.is_known(times)
            if makes_partitions and self._partitions is not None:
                self._partitions.ensure(connection, times)
            series = self._cache.find(connection, observations, new.admit)
            admitted = [each for each in observations if _key_of(each) in series]
            for kind, rows in _make_rows(admitted, series).items():
                if rows:
                    inserted, changed = _insert(
                        connection,
                        kind,
                        rows,
                        counts_first=self._counts_first,
                        is_timescale=self._partitions is None,
                    )
                    stored += inserted
                    updated += changed
        self._cache.remember(series)
        if makes_partitions and self._partitions is not None:
            with self._database.connection() as connection:
                self._partitions.remember(connection)
        return stored, updated, len(observations) - len(admitted)


def _key_of(one: JobstatsObservation) -> SeriesKey:
    return one.target, one.entry_id, one.supplied


def _make_rows(
    observations: list[JobstatsObservation], series: dict[SeriesKey, KnownSeries]
) -> dict[TargetKind, list[tuple[Any, ...]]]:
    """Return the rows for the staging table of each kind."""
    found: dict[TargetKind, list[tuple[Any, ...]]] = {"ost": [], "mdt": []}
    moments = {each.timestamp: _microseconds(each.timestamp) for each in observations}
    for each in observations:
        series_id, kind = series[_key_of(each)]
        values, others = (
            (each.values, each.others) if kind == each.kind else move_counters(each, kind)
        )
        if max(values) > _LARGEST_BIGINT:
            values = [value - _MODULUS if value > _LARGEST_BIGINT else value for value in values]
        found[kind].append((
            each.number, series_id, each.server, moments[each.timestamp], each.snapshot_time,
            each.start_time, each.reset, each.clock_step,
            None if others is None else Jsonb(others), *values,
        ))  # fmt: skip
    return found


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _insert(
    connection: Connection[Any],
    kind: TargetKind,
    rows: list[tuple[Any, ...]],
    *,
    counts_first: bool,
    is_timescale: bool,
) -> tuple[int, int]:
    """Insert new rows. Return the number of new rows and of corrected other rows."""
    statements = STATEMENTS[kind]
    connection.execute(statements.create_stage)
    with connection.cursor() as cursor:
        cursor.adapters.register_dumper(None, SeriesIdDumper)
        with cursor.copy(statements.copy) as copy:
            copy.set_types(statements.types)
            for row in rows:
                copy.write_row(row)
    values: dict[str, Any] = {"counts_first": counts_first}
    stored = changed = 0
    for number, statement in enumerate(
        (statements.store, statements.store_late, statements.store_disordered)
    ):
        if number == 1 and is_timescale:
            allow_late_rows(connection, kind, min(row[3] for row in rows))
        found = connection.execute(statement, values).fetchone()
        if found is None:
            break
        inserted, series, servers, corrections, *constants = found
        stored += inserted
        if corrections is not None:
            texts = [sql.Literal(value) for value in (corrections, *constants)]
            changed += connection.execute(statements.correct.format(*texts), prepare=False).rowcount
        if not series:
            break
        values |= {"series": series, "servers": servers}
    return stored, changed
