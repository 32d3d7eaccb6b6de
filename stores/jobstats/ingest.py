"""Ingest of arrays, each in one transaction."""

from __future__ import annotations

import struct
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from ccagent.stores.budgets import HourlyBudget
from ccagent.stores.database import DatabaseAwayError
from ccagent.stores.jobstats.admission import RefusedArrayError
from ccagent.stores.jobstats.ingest_sql import COMMON, STATEMENTS
from ccagent.stores.jobstats.records import check_array, move_counters
from ccagent.stores.jobstats.schema import COLUMNS, allow_late_rows, lock_compressed_chunks
from ccagent.stores.jobstats.series import key_of
from ccagent.stores.jobstats.sums import LOCK_STORING

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.stores.database import Database
    from ccagent.stores.jobstats.admission import RefusedRecord, SenderRights
    from ccagent.stores.jobstats.records import JobstatsObservation
    from ccagent.stores.jobstats.schema import TargetKind, TimePartitions
    from ccagent.stores.jobstats.series import KnownSeries, SeriesCache, SeriesKey
    from ccagent.stores.jobstats.settings import JobstatsStoreSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TO_2000 = 946_684_800_000_000
"""Microseconds from 1970 to PostgreSQL's epoch."""
_AROUND = timedelta(days=2)
"""Time around disordered rows whose rows may be corrected."""
_MOST_REFUSED = 1000
"""Maximum number of refused records in a response."""
_PARTITION_ERRORS = (psycopg.errors.CheckViolation, psycopg.errors.UndefinedTable)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('server ' || %s, 0))"


_LENGTH, _TIME, _TIMES, _STEP = map(struct.Struct, (">i", ">iq", ">iqiqiq", ">id"))
_NULL = _LENGTH.pack(-1)
_encode = msgspec.json.Encoder().encode
_COPY_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_FORMS = {
    kind: (
        struct.pack(">hi", len(COMMON) + len(names), 16),
        struct.Struct(">" + "iQ" * len(names)).pack,
    )
    for kind, names in COLUMNS.items()
}
"""The begin of a row of the binary COPY, with the length of an id, and its end, the counters."""


class _Row(NamedTuple):
    """A row for a staging table. moment: microseconds since 2000. packed: for a binary COPY."""

    moment: int
    series_id: bytes
    server: str
    packed: bytes


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
    contradicted: int = 0
    unavailable: int = 0
    jobs: int = 0
    states: int = 0


class StoredArray(NamedTuple):
    """The number of records of an array by result, and the refused ones.

    repeated: already stored. expired: older than the retention. late: existing rows that follow a
    new row, whose deltas were computed again. refused_series: refused records of new series beyond
    the limit. new_series: series made.
    """

    records: int
    stored: int
    repeated: int
    expired: int
    late: int
    refused: tuple[RefusedRecord, ...] = ()
    refused_series: int = 0
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
    """Stores arrays. Thread-safe. partitions: None with TimescaleDB."""

    def __init__(
        self,
        database: Database,
        cache: SeriesCache,
        partitions: TimePartitions | None,
        settings: JobstatsStoreSettings,
    ) -> None:
        self._database = database
        self._cache = cache
        self._partitions = partitions
        self._chunk = timedelta(seconds=settings.series.partition.seconds)
        self._retention = timedelta(seconds=settings.series.retention.seconds)
        self._future = timedelta(seconds=settings.limits.future.seconds)
        self._most = settings.limits.records
        self.budget = HourlyBudget(settings.limits.new_series, time.time)
        """New series of a sender for a server."""
        self._counts_first = settings.first == "count"
        self.counters = ArrayCounters()

    def store(self, body: bytes, rights: SenderRights, identity: str) -> StoredArray:
        """Store the valid records of an array in one transaction. A repetition changes nothing.

        rights, identity: of the sender; it has a budget of new series. Raise RefusedArrayError if
        no record is valid, DatabaseAwayError.
        """
        now = datetime.now(UTC)
        checked = check_array(body, self._most, rights, now + self._future)
        observations, refused = checked.observations, checked.refused
        total = len(observations) + len(refused)
        _refuse_all(total, refused, is_forbidden=checked.is_forbidden)
        oldest = now - self._retention
        kept = [each for each in observations if each.timestamp >= oldest]
        expired = len(observations) - len(kept)
        stored = updated = over = 0
        new = _NewSeries(self.budget, identity)
        if kept:
            try:
                stored, updated, unknown, over = self._store(kept, new)
            except BaseException as error:
                new.give_back()
                if not isinstance(error, _PARTITION_ERRORS):
                    raise
                # Another process has dropped a partition or chunk. The next attempt creates it
                # again.
                if self._partitions is not None:
                    self._partitions.forget()
                raise DatabaseAwayError("database: a partition is missing") from error
            refused += unknown
            if not over:
                _refuse_all(total, refused)
        counters = self.counters
        counters.arrays += 1
        repeated = total - len(refused) - expired - stored
        counters.records += total
        counters.stored += stored
        counters.repeated += repeated
        counters.expired += expired
        counters.late += updated
        counters.refused_records += len(refused)
        counters.refused_series += over
        return StoredArray(
            total, stored, repeated, expired, updated, tuple(sorted(refused)[:_MOST_REFUSED]),
            refused_series=over, new_series=len(new),
        )  # fmt: skip

    def _store(
        self, observations: list[JobstatsObservation], new: _NewSeries
    ) -> tuple[int, int, list[RefusedRecord], int]:
        """Return the numbers of new and of corrected rows, refused records, those beyond the limit.

        Refused are records of others' series, and of new series beyond the limit.
        """
        partitions = self._partitions
        times = {each.timestamp for each in observations}
        stored = updated = 0
        with self._database.connection() as connection:
            connection.execute(LOCK_STORING)
            # Serialize repeated arrays, and rows that follow each other, by server.
            for server in sorted({each.server for each in observations}):
                connection.execute(_LOCK, [server])
            if partitions is None and min(times) < self._begin_of_chunk():
                lock_compressed_chunks(connection)
            has_new = partitions is not None and partitions.ensure(connection, times)
            series, unknown, over = self._cache.find(connection, observations, new.admit)
            if unknown:
                numbers = {each.number for each in unknown}
                observations = [each for each in observations if each.number not in numbers]
            for kind, rows in _make_rows(observations, series).items():
                if rows:
                    inserted, changed = _insert(
                        connection,
                        kind,
                        rows,
                        counts_first=self._counts_first,
                        is_timescale=partitions is None,
                    )
                    stored += inserted
                    updated += changed
        self.counters.contradicted += self._cache.remember(series)
        if has_new and partitions is not None:
            with self._database.connection() as connection:
                partitions.remember(connection)
        return stored, updated, unknown, over

    def _begin_of_chunk(self) -> datetime:
        """Return the begin of the current chunk. Policies compress only older ones."""
        now = datetime.now(UTC)
        return now - (now - _EPOCH) % self._chunk


def _refuse_all(total: int, refused: list[RefusedRecord], *, is_forbidden: bool = False) -> None:
    """Raise RefusedArrayError if all records are refused."""
    if refused and len(refused) == total:
        reason = f"none of {total} records can be stored"
        raise RefusedArrayError(reason, sorted(refused), is_forbidden=is_forbidden)


def _make_rows(
    observations: list[JobstatsObservation], series: dict[SeriesKey, KnownSeries]
) -> dict[TargetKind, list[_Row]]:
    """Return the rows for the staging table of each kind."""
    found: dict[TargetKind, list[_Row]] = {"ost": [], "mdt": []}
    moments = {each: _microseconds(each) for each in {one.timestamp for one in observations}}
    servers = {each: _field(each.encode()) for each in {one.server for one in observations}}
    for each in observations:
        series_id, kind = series[key_of(each)]
        values, others = (
            (each.values, each.others) if kind == each.kind else move_counters(each, kind)
        )
        moment, snapshot, start = moments[each.timestamp], each.snapshot_time, each.start_time
        begin, pack = _FORMS[kind]
        counters = [8] * (2 * len(values))
        counters[1::2] = values
        found[kind].append(_Row(moment, series_id, each.server, b"".join((
            begin, series_id, servers[each.server],
            _TIMES.pack(8, moment, 8, snapshot - _TO_2000, 8, start - _TO_2000)
            if snapshot is not None and start is not None
            else b"".join(map(_time, (moment + _TO_2000, snapshot, start))),
            _NULL if each.reset is None else _field(each.reset.encode()),
            _NULL if each.clock_step is None else _STEP.pack(8, each.clock_step),
            _NULL if others is None else _field(b"\1" + _encode(others)),
            pack(*counters),
        ))))  # fmt: skip
    return found


def _time(moment: int | None) -> bytes:
    """Return a time in microseconds since 1970, or null."""
    return _NULL if moment is None else _TIME.pack(8, moment - _TO_2000)


def _field(value: bytes) -> bytes:
    """Return a value with its length before it."""
    return _LENGTH.pack(len(value)) + value


def _microseconds(moment: datetime) -> int:
    """Return a time as PostgreSQL has it: in microseconds since 2000."""
    return (moment - _EPOCH) // _MICROSECOND - _TO_2000


def _insert(
    connection: Connection[Any],
    kind: TargetKind,
    rows: list[_Row],
    *,
    counts_first: bool,
    is_timescale: bool,
) -> tuple[int, int]:
    """Insert new rows. Return the number of new rows and of corrected other rows."""
    statements = STATEMENTS[kind]
    has_several = len({(row.series_id, row.server) for row in rows}) < len(rows)
    if has_several:
        # The first one of a series, server and time counts.
        rows = [*{row[:3]: row for row in reversed(rows)}.values()]
    # The order of the tables and of their indexes, which makes them cheaper.
    rows.sort()
    connection.execute(statements.create_stage)
    with connection.cursor() as cursor, cursor.copy(statements.copy) as copy:
        copy.write(b"".join((_COPY_BEGIN, *(row.packed for row in rows), _COPY_END)))
    values: dict[str, Any] = {"counts_first": counts_first}
    stored = 0
    late: list[Any] = []
    for statement in (statements.store, statements.store_several)[has_several:]:
        inserted, *late, _, _, _, _ = _run(connection, statement, values)
        stored += inserted
        if not any(late):
            return stored, 0
    if is_timescale:
        first = _EPOCH + (min(row.moment for row in rows) + _TO_2000) * _MICROSECOND
        allow_late_rows(connection, kind, first - _AROUND)
    disordered: tuple[list[Any], list[Any]] = late[2] or [], late[3] or []
    changed = 0
    for statement in (statements.store_late, statements.store_disordered):
        series, servers = late[:2] if statement is statements.store_late else disordered
        if not series:
            continue
        given = values | {"series": series, "servers": servers}
        inserted, _, _, ids, names, corrections, *constants = _run(connection, statement, given)
        stored += inserted
        if ids:
            disordered = [*disordered[0], *ids], [*disordered[1], *names]
        if corrections is not None:
            texts = [sql.Literal(value) for value in (corrections, *constants)]
            changed += connection.execute(statements.correct.format(*texts), prepare=False).rowcount
    return stored, changed


def _run(connection: Connection[Any], statement: bytes, values: dict[str, Any]) -> tuple[Any, ...]:
    """Return the only row of a statement's result."""
    found: tuple[Any, ...] | None = connection.execute(statement, values).fetchone()
    if found is None or found[0] is None:
        raise DatabaseAwayError("database: a last observation was just removed")
    return found
