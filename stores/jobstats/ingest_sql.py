"""SQL statements that store an array: a staging table, and the rule for deltas between rows.

A row's delta is the difference to the previous row of the same series and server. Rows may arrive
late; then the deltas of the following rows are computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.stores.jobstats.operations import COLUMNS

if TYPE_CHECKING:
    from ccagent.stores.jobstats.operations import TargetKind

_COMMON = (
    ("number", "int4"), ("time_series_id", "uuid"), ("server", "text"),
    ("timestamp", "int8"), ("snapshot_time", "int8"), ("start_time", "int8"),
    ("reset", "text"), ("others", "jsonb"),
)  # fmt: skip
_KEY = ("time_series_id", "server", "timestamp")
_TIMES = ("timestamp", "snapshot_time", "start_time")
_TIME = "timestamptz 'epoch' + s.{0} * INTERVAL '1 microsecond' AS {0}"
_UNSIGNED = "CASE WHEN s.{0} < 0 THEN s.{0} + 18446744073709551616 ELSE s.{0} END AS {0}"
"""Counters are copied as their 64 bits in a signed integer, the fastest format."""
_RAW = ("snapshot_time", "start_time", "reset", "others")

_SAME_START = (
    "c.start_time BETWEEN {0}.start_time - INTERVAL '1 second' "
    "AND {0}.start_time + INTERVAL '1 second'"
)
"""Lustre 2.15.0 prints times since boot. Converted times differ slightly after a sender's restart.
"""

_INSERT = """
WITH staged AS (
    SELECT number, time_series_id, server, reset, others, {times}, {unsigned} FROM {stage} s
),
fresh AS MATERIALIZED (
    SELECT DISTINCT ON (time_series_id, server, timestamp) *
    FROM staged s
    WHERE NOT EXISTS (
        SELECT FROM {table} o
        WHERE o.time_series_id = s.time_series_id
            AND o.timestamp = s.timestamp AND o.server = s.server
    )
    ORDER BY time_series_id, server, timestamp, number
),
spans AS MATERIALIZED (
    SELECT time_series_id, server, min(timestamp) AS first, max(timestamp) AS last, count(*) AS rows
    FROM fresh
    GROUP BY time_series_id, server
),
chain AS MATERIALIZED (
    SELECT {columns}, true AS is_fresh, false AS is_later FROM fresh
    UNION ALL
    SELECT k.*, false, false FROM spans s CROSS JOIN LATERAL (
        SELECT {columns} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp < s.first
        ORDER BY o.timestamp DESC LIMIT 2
    ) k
    UNION ALL
    SELECT k.*, false, true FROM spans s CROSS JOIN LATERAL (
        SELECT {columns} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp > s.first AND o.timestamp < s.last
    ) k
    WHERE s.rows > 1
    UNION ALL
    SELECT k.*, false, true FROM spans s CROSS JOIN LATERAL (
        SELECT {columns} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp > s.last
        ORDER BY o.timestamp LIMIT 2
    ) k
),
numbered AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY time_series_id, server ORDER BY timestamp) AS n
    FROM chain
),
linked AS (
    SELECT
        c.*,
        coalesce(q.timestamp, p.timestamp, CASE
                WHEN %(counts_first)s AND c.start_time < c.timestamp THEN c.start_time
            END)
            AS since,
        q.n IS NULL AND (
            -- A sender that was killed says again what is known already: nothing counts twice.
            c.reset = 'start_time' AND NOT coalesce({same_start_p}, false)
            OR c.reset = 'absent' AND p.snapshot_time IS NULL
            OR c.reset = 'decreased' AND NOT coalesce(
                c.snapshot_time = p.snapshot_time AND {same_counters}, false
            )
            -- It may also be that the record with the reset was lost.
            OR c.start_time > p.snapshot_time
                AND c.start_time > p.start_time + INTERVAL '1 second'
            OR p.n IS NULL AND %(counts_first)s
        ) AS counts_anew,
        p.n IS NULL AS is_first,
        CASE WHEN q.n IS NULL THEN p.others ELSE q.others END AS before_others,
        {before}
    FROM numbered c
    LEFT JOIN numbered p
        ON p.time_series_id = c.time_series_id AND p.server = c.server AND p.n = c.n - 1
    -- What stands before the zeros of an entry that one reading skipped, so that it is the same
    -- one, or of a killed sender that has forgotten it: then these zeros don't count.
    LEFT JOIN numbered q
        ON p.snapshot_time IS NULL
        AND q.time_series_id = c.time_series_id AND q.server = c.server AND q.n = c.n - 2
        AND (c.reset = 'absent' OR c.reset IS NULL AND q.timestamp > c.timestamp - INTERVAL '1 day')
        AND (
            {same_start_q}
            OR c.start_time IS NULL AND q.start_time IS NULL AND (
                c.snapshot_time = q.snapshot_time
                OR c.snapshot_time > q.snapshot_time
                AND c.snapshot_time <= p.timestamp - INTERVAL '1 second'
            )
        )
        AND {not_less}
    WHERE c.is_fresh OR c.is_later
),
computed AS MATERIALIZED (
    SELECT
        {key}, {raw}, since, is_fresh, {names},
        CASE WHEN others IS NOT NULL THEN
            others_delta(others, before_others, is_first, coalesce(counts_anew, false))
        END AS others_delta,
        {deltas}
    FROM linked
),
inserted AS (
    INSERT INTO {table} ({key}, {raw}, since, {names}, others_delta, {delta_names})
    SELECT {key}, {raw}, since, {names}, others_delta, {delta_names}
    FROM computed WHERE is_fresh ORDER BY timestamp
    ON CONFLICT DO NOTHING
    RETURNING 1
),
updated AS (
    UPDATE {table} o
    SET since = c.since, others_delta = c.others_delta, {assignments}
    FROM computed c
    WHERE NOT c.is_fresh AND o.time_series_id = c.time_series_id
        AND o.timestamp = c.timestamp AND o.server = c.server
    RETURNING 1
),
unsummed AS (
    DELETE FROM summed_times s USING (SELECT DISTINCT timestamp FROM computed) c
    WHERE s.timestamp = quarter_end(c.timestamp)
)
SELECT (SELECT count(*) FROM inserted), (SELECT count(*) FROM updated)
"""


class TableStatements(NamedTuple):
    """The statements for one table.

    copy: into the staging table. types: of the staging table's columns.
    """

    create_stage: bytes
    copy: bytes
    types: tuple[str, ...]
    insert: bytes


def make_statements(kind: TargetKind) -> TableStatements:
    """Return the statements for the table of a kind."""
    names = COLUMNS[kind]
    stage = f"{kind}_stage"
    types = (*_COMMON, *((name, "int8") for name in names))
    defined = ", ".join(f"{name} {sql_type}" for name, sql_type in types)
    columns = ", ".join((*_KEY, *_RAW, *names))
    insert = _INSERT.format(
        stage=stage,
        table=kind,
        times=", ".join(_TIME.format(name) for name in _TIMES),
        unsigned=", ".join(_UNSIGNED.format(name) for name in names),
        columns=columns,
        same_counters=" AND ".join(f"c.{name} = p.{name}" for name in names),
        same_start_p=_SAME_START.format("p"),
        same_start_q=_SAME_START.format("q"),
        key=", ".join(_KEY),
        raw=", ".join(_RAW),
        names=", ".join(names),
        before=",\n        ".join(
            f"CASE WHEN q.n IS NULL THEN p.{name} ELSE q.{name} END AS before_{name}"
            for name in names
        ),
        not_less=" AND ".join(f"c.{name} >= q.{name}" for name in names),
        deltas=",\n        ".join(
            f"counter_delta({name}, before_{name}, coalesce(counts_anew, false)) AS {name}_delta"
            for name in names
        ),
        delta_names=", ".join(f"{name}_delta" for name in names),
        assignments=", ".join(f"{name}_delta = c.{name}_delta" for name in names),
    )
    # All parts are constants of this package. Statements contain no values of requests.
    return TableStatements(
        (f"CREATE TEMP TABLE IF NOT EXISTS {stage} ({defined}) ON COMMIT DELETE ROWS").encode(),
        (f"COPY {stage} FROM STDIN (FORMAT BINARY)").encode(),
        tuple(sql_type for _, sql_type in types),
        (insert).encode(),
    )


STATEMENTS: dict[TargetKind, TableStatements] = {
    "ost": make_statements("ost"),
    "mdt": make_statements("mdt"),
}
