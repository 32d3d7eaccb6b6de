"""Sums of each series by quarter of an hour, hour and day. They reduce the rows that queries read.

A quarter is after its start, up to its end, like the time ranges of queries. Its sums are valid
while `summed_times` contains its end. Storing a row removes this entry in the same transaction, and
`sum_up` computes the sums again. The same applies to hours and days: each is valid only with all
its quarters.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from psycopg import sql

from ccagent.stores.jobstats.schema import COLUMNS, KINDS, allow_late_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from ccagent.stores.jobstats.query_request import TimeRange
    from ccagent.stores.jobstats.schema import TargetKind, TimePartitions

QUARTER = timedelta(minutes=15)
_SETTLED = timedelta(minutes=1)
_BACK = timedelta(days=7)
_MOST_SECONDS = 10.0
_MOST_GAPS = 8
_FEW = 4
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCK = 0x6A6F627373756D73  # "jobssums"
_STORING = 0x6A6F627371756172  # "jobsquar"

LOCK_STORING = sql.SQL(
    "SELECT pg_advisory_xact_lock_shared({}), set_config('enable_seqscan', 'off', true)"
).format(_STORING)
"""First statement of each transaction that stores rows. It excludes concurrent summation.

A plan made while the table of last observations is small must still search it by its index when it
is large.
"""

_MISSING = """
SELECT quarter
FROM generate_series(
    %(last)s::timestamptz,
    least(%(first)s::timestamptz, (
        -- Since then each quarter has had sums, which a late row may have invalidated.
        SELECT greatest(timestamp, %(oldest)s) FROM summed_times ORDER BY timestamp LIMIT 1
    )),
    INTERVAL '-15 minutes'
) AS all_of_them (quarter)
WHERE NOT EXISTS (SELECT FROM summed_times s WHERE s.timestamp = quarter)
"""
_EMPTY = """
INSERT INTO {valid}
SELECT whole FROM unnest(%(ends)s::timestamptz[]) AS e (whole)
WHERE NOT EXISTS (
    SELECT FROM ({rows}) r
    WHERE timestamp > %(begins)s::timestamptz AND timestamp <= %(last)s::timestamptz
) AND %(count)s = (
    SELECT count(*) FROM {parts} p
    WHERE p.timestamp > whole - %(length)s::interval AND p.timestamp <= whole
)
"""
_MISSING_LONGER = """
SELECT whole
FROM (
    SELECT
        date_bin(%(length)s::interval, timestamp - INTERVAL '1 microsecond', TIMESTAMPTZ 'epoch')
            + %(length)s::interval AS whole
    FROM {parts}
) p
WHERE NOT EXISTS (SELECT FROM {valid} v WHERE v.timestamp = whole)
GROUP BY whole
HAVING count(*) = %(count)s
ORDER BY whole DESC
"""
_VALID_LONGER = """
INSERT INTO {valid}
SELECT %(end)s::timestamptz
FROM {parts}
WHERE timestamp > %(end)s::timestamptz - %(length)s::interval
    AND timestamp <= %(end)s::timestamptz
HAVING count(*) = %(count)s
"""
_SUM = """
INSERT INTO {sums} (time_series_id, timestamp, {names}, others_delta)
SELECT d.time_series_id, %(end)s::timestamptz, {values}, o.others_delta
FROM (
    SELECT time_series_id, {totals} FROM {table}
    WHERE timestamp > %(end)s::timestamptz - %(length)s::interval
        AND timestamp <= %(end)s::timestamptz
    GROUP BY 1
) d
LEFT JOIN (
    SELECT time_series_id, jsonb_object_agg(key, total) AS others_delta
    FROM (
        SELECT time_series_id, key, sum(value::numeric) AS total
        FROM {table} CROSS JOIN LATERAL jsonb_each_text(others_delta)
        WHERE timestamp > %(end)s::timestamptz - %(length)s::interval
            AND timestamp <= %(end)s::timestamptz AND others_delta IS NOT NULL
        GROUP BY 1, 2
    ) t
    GROUP BY 1
) o USING (time_series_id)
"""


TableEnd = Literal["", "_sums", "_hours", "_days"]
"""The end of the name of a table: of sums, or empty for observations."""


class SumLength(NamedTuple):
    """A length of sums. table: of the sums. valid: name of the table of the ends of valid ones."""

    table: TableEnd
    valid: str
    length: timedelta


_OBSERVED = SumLength("", "summed_times", QUARTER)
_LENGTHS = (
    SumLength("_sums", "summed_times", QUARTER),
    SumLength("_hours", "summed_hours", timedelta(hours=1)),
    SumLength("_days", "summed_days", timedelta(days=1)),
)
"""Each is a multiple of the one before, from which its sums are computed."""


class TimePiece(NamedTuple):
    """A part of a query's time range: after `begins`, up to `ends`. table: the one to read."""

    begins: datetime
    ends: datetime
    table: TableEnd

    def of(self, kind: TargetKind) -> sql.Identifier:
        """Return the table to read for a kind of target."""
        return sql.Identifier(f"{kind}{self.table}")


def sum_up(
    connection: Connection[Any],
    partitions: TimePartitions | None,
    now: datetime,
    retention: timedelta,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Compute the missing sums of the last days, newest first, for some seconds.

    Return the number of computed sums. Only one of several stores does this at a time. The
    connection is in autocommit.
    """
    if connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() != (True,):
        return 0
    try:
        connection.execute("SET lock_timeout = '10s'")
        deadline = monotonic() + _MOST_SECONDS
        done = 0
        for part, whole in pairwise((_OBSERVED, *_LENGTHS)):
            wanted = (
                _find_longer(connection, part, whole)
                if part.table
                else _find_quarters(connection, now, retention)
            )
            # Most times of a new database are empty. They need no statements of their own.
            for _, group in groupby(wanted, lambda end: (end - _MICROSECOND).date()):
                ends = list(group)
                if len(ends) > _FEW and (marked := _mark_empty(connection, part, whole, ends)):
                    done += marked
                    continue
                for end in ends:
                    done += _sum_one(connection, partitions, part, whole, end)
                    if monotonic() > deadline:
                        return done
        return done
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def forget_sums(connection: Connection[Any], before: datetime) -> None:
    """Invalidate sums of quarters from which the retention removes rows. Remove longer sums."""
    connection.execute(
        "DELETE FROM summed_times WHERE timestamp < %s::timestamptz + INTERVAL '15 minutes'",
        [before],
    )
    for kind in KINDS:
        for longer in _LENGTHS[1:]:
            query = sql.SQL("DELETE FROM {} WHERE timestamp < %s")
            connection.execute(query.format(sql.Identifier(f"{kind}{longer.table}")), [before])


def find_pieces(connection: Connection[Any], wanted: TimeRange) -> list[TimePiece]:
    """Return the parts of a time range, with and without sums."""
    ends = [
        [
            end
            for (end,) in connection.execute(
                sql.SQL(
                    "SELECT timestamp FROM {} WHERE timestamp >= %s AND timestamp <= %s ORDER BY 1"
                ).format(sql.Identifier(each.valid)),
                [wanted.begins + each.length, wanted.ends],
            )
        ]
        for each in _LENGTHS
    ]
    return split_time(wanted, ends)


def split_time(wanted: TimeRange, ends: list[list[datetime]]) -> list[TimePiece]:
    """Split a time range into runs of quarters with sums, and gaps.

    ends: of those with sums, in order, by length. Beyond a maximum number, the shortest runs count
    as gaps. The longest run of hours in a run of quarters is a piece of its own, and the longest
    run of days in it.
    """
    pieces: list[TimePiece] = []
    at = wanted.begins
    runs = sorted(_find_runs(ends[0], QUARTER), key=_length)
    for run in sorted(runs[1 - _MOST_GAPS :]):
        pieces += [TimePiece(at, run[0], ""), *_split_run(*run, ends, 0)]
        at = run[1]
    pieces.append(TimePiece(at, wanted.ends, ""))
    return [piece for piece in pieces if piece.begins < piece.ends]


def _split_run(
    begins: datetime, ends: datetime, known: list[list[datetime]], place: int
) -> Iterator[TimePiece]:
    """Yield the pieces of a run of sums of a length, some empty. place: of the length."""
    table = _LENGTHS[place].table
    for longer in _LENGTHS[place + 1 : place + 2]:
        inside = [end for end in known[place + 1] if begins + longer.length <= end <= ends]
        if inside:
            first, last = max(_find_runs(inside, longer.length), key=_length)
            yield TimePiece(begins, first, table)
            yield from _split_run(first, last, known, place + 1)
            begins = last
    yield TimePiece(begins, ends, table)


def _find_runs(ends: list[datetime], length: timedelta) -> list[tuple[datetime, datetime]]:
    """Return begin and end of the times without a gap. ends: of pieces of a length, in order."""
    runs: list[tuple[datetime, datetime]] = []
    for end in ends:
        if runs and runs[-1][1] == end - length:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((end - length, end))
    return runs


def _length(run: tuple[datetime, datetime]) -> timedelta:
    return run[1] - run[0]


def _find_quarters(
    connection: Connection[Any], now: datetime, retention: timedelta
) -> list[datetime]:
    """Return the ends of quarters without sums, newest first."""
    last = _quarter_end(now - _SETTLED) - QUARTER
    oldest = last - (retention - 3 * QUARTER)
    values = {"last": last, "first": max(last - _BACK, oldest), "oldest": oldest}
    found = connection.execute(_MISSING, values)
    return [end.astimezone(UTC) for (end,) in found]


def _find_longer(connection: Connection[Any], part: SumLength, whole: SumLength) -> list[datetime]:
    """Return the ends of longer times without sums whose parts all have sums, newest first."""
    query = sql.SQL(_MISSING_LONGER).format(
        parts=sql.Identifier(part.valid), valid=sql.Identifier(whole.valid)
    )
    values = {"length": whole.length, "count": whole.length // part.length}
    return [end.astimezone(UTC) for (end,) in connection.execute(query, values)]


def _mark_empty(
    connection: Connection[Any], part: SumLength, whole: SumLength, ends: list[datetime]
) -> int:
    """Make the sums of a day's times valid without computing them. Return 0 if it has rows.

    ends: newest first.
    """
    rows = (
        sql.SQL("SELECT timestamp FROM {}").format(sql.Identifier(f"{kind}{each.table}"))
        for kind in KINDS
        for each in (part, whole)
    )
    query = sql.SQL(_EMPTY).format(
        valid=sql.Identifier(whole.valid),
        parts=sql.Identifier(part.valid),
        rows=sql.SQL(" UNION ALL ").join(rows),
    )
    values = {
        "ends": ends, "begins": ends[-1] - whole.length, "last": ends[0], "length": whole.length,
        "count": whole.length // part.length if part.table else 0,
    }  # fmt: skip
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_STORING])
        return connection.execute(query, values).rowcount


def _sum_one(
    connection: Connection[Any],
    partitions: TimePartitions | None,
    part: SumLength,
    whole: SumLength,
    end: datetime,
) -> int:
    """Compute the sums of a time from those of its parts. Return 0 if a part became invalid."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_STORING])
        if not part.table:
            if partitions is not None:
                partitions.ensure(connection, [end])
            else:
                for kind in KINDS:
                    allow_late_rows(connection, f"{kind}_sums", end)
        _write_sums(connection, part.table, whole.table, end, whole.length)
        valid = sql.Identifier(whole.valid)
        if not part.table:
            query = sql.SQL("INSERT INTO {} VALUES (%s)").format(valid)
            return connection.execute(query, [end]).rowcount
        query = sql.SQL(_VALID_LONGER).format(parts=sql.Identifier(part.valid), valid=valid)
        count = whole.length // part.length
        values = {"end": end, "length": whole.length, "count": count}
        return connection.execute(query, values).rowcount


def _write_sums(
    connection: Connection[Any], source: str, table: str, end: datetime, length: timedelta
) -> None:
    """Write the sums of a time anew. source, table: ends of the names of tables."""
    for kind in KINDS:
        sums = sql.Identifier(f"{kind}{table}")
        connection.execute(sql.SQL("DELETE FROM {} WHERE timestamp = %s").format(sums), [end])
        names = [sql.Identifier(f"{name}_delta") for name in COLUMNS[kind]]
        statement = sql.SQL(_SUM).format(
            sums=sums,
            table=sql.Identifier(f"{kind}{source}"),
            names=sql.SQL(", ").join(names),
            values=sql.SQL(", ").join(sql.SQL("d.{}").format(name) for name in names),
            totals=sql.SQL(", ").join(sql.SQL("sum({0}) AS {0}").format(name) for name in names),
        )
        connection.execute(statement, {"end": end, "length": length})


def _quarter_end(moment: datetime) -> datetime:
    return _EPOCH - (_EPOCH - moment) // QUARTER * QUARTER
