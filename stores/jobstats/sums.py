"""Sums of each series by quarter of an hour. They reduce the rows that queries read.

A quarter is after its start, up to its end, like the time ranges of queries. Its sums are valid
while `summed_times` contains its end. Storing a row removes this entry in the same transaction, and
`sum_up` computes the sums again.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from ccagent.stores.jobstats.operations import COLUMNS, KINDS, sums_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from ccagent.stores.jobstats.partitions import TimePartitions
    from ccagent.stores.jobstats.query_request import TimeRange

QUARTER = timedelta(minutes=15)
_SETTLED = timedelta(minutes=1)
_BACK = timedelta(days=7)
_MOST_SECONDS = 10.0
_MOST_GAPS = 8
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
FROM generate_series(%(last)s::timestamptz, %(first)s::timestamptz, INTERVAL '-15 minutes')
    AS all_of_them (quarter)
WHERE NOT EXISTS (SELECT FROM summed_times s WHERE s.timestamp = quarter)
"""
_SUM = """
INSERT INTO {sums} (time_series_id, timestamp, {names}, others_delta)
SELECT d.time_series_id, %(quarter)s::timestamptz, {values}, o.others_delta
FROM (
    SELECT time_series_id, {totals} FROM {table}
    WHERE timestamp > %(quarter)s::timestamptz - INTERVAL '15 minutes'
        AND timestamp <= %(quarter)s::timestamptz
    GROUP BY 1
) d
LEFT JOIN (
    SELECT time_series_id, jsonb_object_agg(key, total) AS others_delta
    FROM (
        SELECT time_series_id, key, sum(value::numeric) AS total
        FROM {table} CROSS JOIN LATERAL jsonb_each_text(others_delta)
        WHERE timestamp > %(quarter)s::timestamptz - INTERVAL '15 minutes'
            AND timestamp <= %(quarter)s::timestamptz AND others_delta IS NOT NULL
        GROUP BY 1, 2
    ) t
    GROUP BY 1
) o USING (time_series_id)
"""


class TimePiece(NamedTuple):
    """A part of a query's time range: after `begins`, up to `ends`."""

    begins: datetime
    ends: datetime
    is_summed: bool


def sum_up(
    connection: Connection[Any],
    partitions: TimePartitions | None,
    now: datetime,
    retention: timedelta,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Compute the missing sums of the last days, newest first, for some seconds.

    Return the number of quarters. Only one of several stores does this at a time. The connection is
    in autocommit.
    """
    if connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone() != (True,):
        return 0
    try:
        connection.execute("SET lock_timeout = '10s'")
        last = _quarter_end(now - _SETTLED) - QUARTER
        first = last - min(_BACK, retention - 3 * QUARTER)
        wanted = connection.execute(_MISSING, {"last": last, "first": first}).fetchall()
        deadline = monotonic() + _MOST_SECONDS
        done = 0
        for (quarter,) in wanted:
            _sum_quarter(connection, partitions, quarter)
            done += 1
            if monotonic() > deadline:
                break
        return done
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def forget_sums(connection: Connection[Any], before: datetime) -> None:
    """Invalidate sums of quarters from which the retention removes rows."""
    connection.execute(
        "DELETE FROM summed_times WHERE timestamp < %s::timestamptz + INTERVAL '15 minutes'",
        [before],
    )


def find_pieces(connection: Connection[Any], wanted: TimeRange) -> list[TimePiece]:
    """Return the parts of a time range, with and without sums."""
    times = connection.execute(
        "SELECT timestamp FROM summed_times "
        "WHERE timestamp >= %s::timestamptz + INTERVAL '15 minutes' AND timestamp <= %s "
        "ORDER BY timestamp",
        [wanted.begins, wanted.ends],
    )
    return split_time(wanted, [end for (end,) in times])


def split_time(wanted: TimeRange, quarters: list[datetime]) -> list[TimePiece]:
    """Split a time range into runs of quarters with sums, and gaps.

    quarters: ends of the quarters with sums, in order. Beyond a maximum number, the shortest runs
    count as gaps.
    """
    runs: list[tuple[datetime, datetime]] = []
    for end in quarters:
        if runs and runs[-1][1] == end - QUARTER:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((end - QUARTER, end))
    longest = sorted(runs, key=lambda run: run[1] - run[0], reverse=True)[: _MOST_GAPS - 1]
    pieces: list[TimePiece] = []
    at = wanted.begins
    for begins, ends in sorted(longest):
        if at < begins:
            pieces.append(TimePiece(at, begins, is_summed=False))
        pieces.append(TimePiece(begins, ends, is_summed=True))
        at = ends
    if at < wanted.ends:
        pieces.append(TimePiece(at, wanted.ends, is_summed=False))
    return pieces


def _sum_quarter(
    connection: Connection[Any], partitions: TimePartitions | None, quarter: datetime
) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_STORING])
        if partitions is not None:
            partitions.ensure(connection, [quarter])
        for kind in KINDS:
            sums = sql.Identifier(sums_table(kind))
            connection.execute(
                sql.SQL("DELETE FROM {} WHERE timestamp = %s").format(sums), [quarter]
            )
            names = [sql.Identifier(f"{name}_delta") for name in COLUMNS[kind]]
            statement = sql.SQL(_SUM).format(
                sums=sums,
                table=sql.Identifier(kind),
                names=sql.SQL(", ").join(names),
                values=sql.SQL(", ").join(sql.SQL("d.{}").format(name) for name in names),
                totals=sql.SQL(", ").join(
                    sql.SQL("sum({0}) AS {0}").format(name) for name in names
                ),
            )
            connection.execute(statement, {"quarter": quarter})
        connection.execute("INSERT INTO summed_times VALUES (%s)", [quarter])


def _quarter_end(moment: datetime) -> datetime:
    return _EPOCH - (_EPOCH - moment) // QUARTER * QUARTER
