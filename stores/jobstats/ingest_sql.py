"""SQL statements that store an array: a staging table, and the rule for deltas between rows.

A row's delta is the difference to the previous row of the same series and server. `store` reads
the previous rows from the table of last observations, and touches no other rows than its own. It
stores rows that are the only ones of their series, and later than the last observation. It leaves
all others to `store_several`, which does the same for several rows of a series, whatever their
times. This one leaves series with late rows to `store_late`, which searches the observations and
corrects the following rows, and series in disorder, after a step of a server's clock, to
`store_disordered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from ccagent.stores.jobstats.operations import COLUMNS

if TYPE_CHECKING:
    from ccagent.stores.jobstats.operations import TargetKind

COMMON = (
    ("time_series_id", "uuid"), ("server", "text"),
    ("timestamp", "timestamptz"), ("snapshot_time", "timestamptz"), ("start_time", "timestamptz"),
    ("reset", "text"), ("clock_step", "float8"), ("others", "jsonb"),
)  # fmt: skip
_KEY = ("time_series_id", "server", "timestamp")
_UNSIGNED = "CASE WHEN s.{0} < 0 THEN s.{0} + 18446744073709551616 ELSE s.{0} END AS {0}"
"""Counters are copied as their 64 bits in a signed integer, the fastest format."""
_RAW = ("snapshot_time", "start_time", "reset", "clock_step", "others")
_SEEN = ("timestamp", "snapshot_time", "start_time", "clock_step", "others")
"""The first fields of the type KIND_observation. The counters follow."""

_SAME_START = (
    "{0}.start_time BETWEEN ({1}).start_time - INTERVAL '1 second' "
    "AND ({1}).start_time + INTERVAL '1 second'"
)
"""Lustre 2.15.0 prints times since boot. Converted times differ slightly after a sender's restart.
"""
_STEADY = "{0}.timestamp - coalesce({0}.clock_step, 0) * INTERVAL '1 second'"
_STEADY_SEEN = "({0}).timestamp - coalesce(({0}).clock_step, 0) * INTERVAL '1 second'"
"""The time without the steps of the server's clock that the sender has noticed."""

_MET = """
met AS MATERIALIZED (
    SELECT s.*, l.seen, l.before, l.is_disordered
    FROM staged s
    LEFT JOIN LATERAL (
        SELECT seen, before, is_disordered FROM {table}_last l
        WHERE l.time_series_id = s.time_series_id AND l.server = s.server LIMIT 1
    ) l ON true
    WHERE (l.seen).timestamp IS DISTINCT FROM s.timestamp
),
"""
"""Rows that are not the last observation already, with this."""

_FRESH = """{met}behind AS MATERIALIZED (
    SELECT DISTINCT time_series_id, server, is_disordered FROM met s
    WHERE timestamp < (seen).timestamp
        -- A later reading than the last one, after the server's clock was set back.
        AND ({same_start_last} AND {not_less_last} AND {more_last}) IS NOT TRUE
        AND (
            (s.clock_step IS NOT NULL OR (seen).clock_step IS NOT NULL)
            AND {steady} > {steady_last}
        ) IS NOT TRUE
),
fresh AS MATERIALIZED (
    SELECT * FROM met s WHERE {not_behind}
),
multiple AS MATERIALIZED (
    SELECT time_series_id, server FROM fresh GROUP BY 1, 2 HAVING count(*) > 1
),
chain AS MATERIALIZED (
    SELECT {columns}, {observation} AS seen, true AS is_fresh, false AS is_later, 2 AS place
    FROM fresh JOIN multiple USING (time_series_id, server)
    UNION ALL
    SELECT {nothing}, k.seen, false, false, k.place
    FROM (
        SELECT DISTINCT ON (time_series_id, server) time_series_id, server, seen, before
        FROM fresh JOIN multiple USING (time_series_id, server)
    ) g
    CROSS JOIN LATERAL (VALUES (g.seen, 1), (g.before, 0)) AS k (seen, place)
    WHERE (k.seen).timestamp IS NOT NULL
),
"""
"""Rows of series without late rows, after their last observations.

A chain is needed only for series with several rows in the array.
"""

_NOT_BEHIND = """NOT EXISTS (
        SELECT FROM behind b WHERE b.time_series_id = s.time_series_id AND b.server = s.server
    )"""

_SINGLE = """
    SELECT
        {columns}, {observation} AS seen, true AS is_fresh, false AS is_later, 2 AS place,
        s.seen AS p, s.before AS q, true AS is_last
    FROM met s
    WHERE {chosen}"""
"""Series with one row in the array. Its last observations are found already."""

_IN_ORDER = "coalesce(timestamp > (seen).timestamp, true)"
_NOT_MULTIPLE = """ AND NOT EXISTS (
        SELECT FROM multiple m
        WHERE m.time_series_id = s.time_series_id AND m.server = s.server
    )"""

_FRESH_LATE = """
fresh AS MATERIALIZED (
    SELECT * FROM staged s
    WHERE NOT EXISTS (
        SELECT FROM {table} o
        WHERE o.time_series_id = s.time_series_id
            AND o.timestamp = s.timestamp AND o.server = s.server
    )
),
spans AS MATERIALIZED (
    SELECT time_series_id, server, min(timestamp) AS first, max(timestamp) AS last
    FROM fresh
    GROUP BY time_series_id, server
),
chain AS MATERIALIZED (
    SELECT {columns}, {observation} AS seen, true AS is_fresh, false AS is_later FROM fresh
    UNION ALL
    SELECT k.*, false, false FROM spans s CROSS JOIN LATERAL (
        SELECT {columns}, {observation} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp < s.first - {around}
        ORDER BY o.timestamp DESC LIMIT 2
    ) k
    UNION ALL
    SELECT k.*, false, true FROM spans s CROSS JOIN LATERAL (
        SELECT {columns}, {observation} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp >= s.first - {around} AND o.timestamp <= s.last + {around}
    ) k
    UNION ALL
    SELECT k.*, false, true FROM spans s CROSS JOIN LATERAL (
        SELECT {columns}, {observation} FROM {table} o
        WHERE o.time_series_id = s.time_series_id AND o.server = s.server
            AND o.timestamp > s.last + {around}
        ORDER BY o.timestamp LIMIT 2
    ) k
),
"""
"""Late rows, with the rows around them."""

_CHAINED = """
    SELECT
        *,
        lag(seen) OVER w AS p,
        lag(seen, 2) OVER w AS q,
        lead(true) OVER w IS NULL AS is_last
    FROM {ordered}
    WINDOW w AS (PARTITION BY time_series_id, server ORDER BY {order})"""

_STORE = """
WITH staged AS (
    SELECT time_series_id, server, reset, clock_step, others, timestamp, snapshot_time,
        start_time, {unsigned}
    FROM {stage} s{chosen}
),
{fresh}
numbered AS ({chained}{single}
),
linked AS MATERIALIZED (
    SELECT
        *,
        -- Reading a field of a row costs more than comparing it.
        {fields},
        coalesce({same_start}, false) AS has_same_start,
        -- What stands before the zeros of an entry that one reading skipped, so that it is the
        -- same one, or of a killed sender that has forgotten it: then these zeros don't count.
        coalesce(
            (p).timestamp IS NOT NULL AND (p).snapshot_time IS NULL
            AND (reset = 'absent'
                OR reset IS NULL AND (q).timestamp > timestamp - INTERVAL '1 day')
            AND (
                {same_start_q}
                OR start_time IS NULL AND (q).start_time IS NULL AND (
                    snapshot_time = (q).snapshot_time
                    OR snapshot_time > (q).snapshot_time
                    AND snapshot_time <= (p).timestamp - INTERVAL '1 second'
                )
            )
            AND {not_less_q},
            false
        ) AS has_skipped
    FROM numbered c
    WHERE is_fresh OR is_later
),
disordered AS MATERIALIZED (
    SELECT DISTINCT time_series_id, server FROM linked c
    WHERE {disorder}
),
computed AS MATERIALIZED (
    SELECT
        c.*,
        CASE WHEN has_skipped THEN q ELSE p END AS before,
        (p).timestamp IS NULL AS is_first,
        NOT has_skipped AND coalesce(
            -- A sender that was killed says again what is known already: nothing counts twice.
            reset = 'start_time' AND NOT has_same_start
            OR reset = 'absent' AND (p).snapshot_time IS NULL
            OR reset = 'decreased' AND NOT coalesce(
                snapshot_time = (p).snapshot_time AND {same_counters}, false
            )
            -- It may also be that the record with the reset was lost.
            OR start_time > (p).snapshot_time
                AND start_time > (p).start_time + INTERVAL '1 second'
            OR (p).timestamp IS NULL AND %(counts_first)s,
            false
        ) AS counts_anew
    FROM linked c
    WHERE NOT EXISTS (
        SELECT FROM disordered d
        WHERE d.time_series_id = c.time_series_id AND d.server = c.server
    )
),
grown AS {once}(
    SELECT
        {key}, {raw}, is_fresh, {names},
        CASE
            WHEN (before).timestamp < timestamp THEN (before).timestamp
            WHEN (before).timestamp IS NULL AND %(counts_first)s AND start_time < timestamp
                THEN start_time
        END AS since,
        CASE WHEN others IS NOT NULL THEN
            others_delta(others, (before).others, is_first, counts_anew)
        END AS others_delta,
        {deltas}
    FROM computed
),
inserted AS (
    INSERT INTO {table} ({key}, {raw}, since, {names}, others_delta, {delta_names})
    SELECT {key}, {raw}, since, {names}, others_delta, {delta_names}
    FROM grown WHERE is_fresh ORDER BY timestamp{conflict}
    RETURNING 1
),
last_ones AS (
    INSERT INTO {table}_last AS l (time_series_id, server, seen, before, is_disordered)
    SELECT
        time_series_id, server, seen, CASE WHEN snapshot_time IS NULL THEN p END, {is_disordered}
    FROM computed c
    WHERE is_last{is_known_last}
    ON CONFLICT (time_series_id, server) DO UPDATE
    SET seen = excluded.seen, before = excluded.before,
        is_disordered = l.is_disordered OR excluded.is_disordered
            OR (l.seen).timestamp > (excluded.seen).timestamp
),
unsummed AS (
    DELETE FROM summed_times s USING (SELECT DISTINCT timestamp FROM computed) c
    WHERE s.timestamp = quarter_end(c.timestamp)
),
left_over AS (
    {left_over}SELECT time_series_id, server, true AS is_disordered FROM disordered
)
SELECT
    (SELECT count(*) FROM inserted),
    (SELECT array_agg(time_series_id) FROM left_over WHERE NOT is_disordered),
    (SELECT array_agg(server) FROM left_over WHERE NOT is_disordered),
    (SELECT array_agg(time_series_id) FROM left_over WHERE is_disordered),
    (SELECT array_agg(server) FROM left_over WHERE is_disordered),
    {changed}
"""
_OLDER = """SELECT time_series_id, server, false AS is_disordered FROM met
    WHERE timestamp < (seen).timestamp
    UNION ALL
    """
_BEHIND = """SELECT time_series_id, server, is_disordered FROM behind
    UNION ALL
    """
_CHOSEN = """
    JOIN unnest(%(series)s::uuid[], %(servers)s::text[]) AS g (time_series_id, server)
        USING (time_series_id, server)"""
_KNOWN_LAST = """
        AND NOT EXISTS (
            SELECT FROM {table}_last l
            WHERE l.time_series_id = c.time_series_id AND l.server = c.server
                AND NOT EXISTS (
                    SELECT FROM chain k
                    WHERE k.time_series_id = c.time_series_id AND k.server = c.server
                        AND k.timestamp = (l.seen).timestamp
                )
        )"""
_DISORDER = """({same_start_p} AND NOT ({not_less_p})
            OR NOT has_same_start AND (clock_step IS NOT NULL OR (p).clock_step IS NOT NULL)
                AND {steady} < {steady_p})
        AND (reset IS NULL OR reset = 'snapshot_gap') AND NOT has_skipped"""
_BY_START = """(
        SELECT
            *,
            first_value(start_time) OVER (
                PARTITION BY time_series_id, server ORDER BY start_time
                RANGE BETWEEN INTERVAL '1 second' PRECEDING AND CURRENT ROW
            ) AS began
        FROM chain
    ) AS c"""
_ORDER_BY_START = """
        coalesce(began, {steady}),
        CASE WHEN began IS NOT NULL THEN {total} END,
        snapshot_time, {steady}"""
_CHANGED = """(
        SELECT jsonb_agg(r)::text
        FROM (SELECT {key}, since, others_delta, {delta_names} FROM grown WHERE NOT is_fresh) r
    ),
    (SELECT array_agg(DISTINCT time_series_id) FROM grown WHERE NOT is_fresh),
    (SELECT min(timestamp) FROM grown WHERE NOT is_fresh),
    (SELECT max(timestamp) FROM grown WHERE NOT is_fresh)"""
_CORRECT = """
UPDATE {table} o
SET since = c.since, others_delta = c.others_delta, {assignments}
FROM jsonb_to_recordset({{}}) AS c (
    time_series_id uuid, server text, timestamp timestamptz, since timestamptz,
    others_delta jsonb, {delta_types}
)
WHERE o.time_series_id = c.time_series_id AND o.timestamp = c.timestamp AND o.server = c.server
    -- Values in the statement limit the partitions, chunks and compressed rows that it reads.
    AND o.time_series_id = ANY ({{}}) AND o.timestamp BETWEEN {{}} AND {{}}
    AND (o.since, o.others_delta, {old_deltas})
        IS DISTINCT FROM (c.since, c.others_delta, {new_deltas})
"""


class TableStatements(NamedTuple):
    """The statements for one table.

    copy: into the staging table, without equal times of a series and server. store needs one row
    of each series and server; what it leaves is stored by store_several. This one, store_late and
    store_disordered return the number of new rows, and ids and servers of the series that they
    leave to the latter two, which need them. Then follow the corrections of other rows for
    `correct`: their values, ids, first and last time.
    """

    create_stage: bytes
    copy: bytes
    store: bytes
    store_several: bytes
    store_late: bytes
    store_disordered: bytes
    correct: sql.SQL


def make_statements(kind: TargetKind) -> TableStatements:
    """Return the statements for the table of a kind."""
    names = COLUMNS[kind]
    stage = f"{kind}_stage"
    types = (*COMMON, *((name, "int8") for name in names))
    defined = ", ".join(f"{name} {sql_type}" for name, sql_type in types)
    store = _fill(kind, "", fresh=_MET, left_over=_OLDER, is_disordered=False)
    several = _fill(kind, "", fresh=_FRESH, left_over=_BEHIND, is_disordered=False)
    late = _fill(kind, _CHOSEN, fresh=_FRESH_LATE, around="0", is_disordered=False)
    disordered = _fill(kind, _CHOSEN, fresh=_FRESH_LATE, around="2 days", is_disordered=True)
    correct = _CORRECT.format(
        table=kind,
        assignments=", ".join(f"{name}_delta = c.{name}_delta" for name in names),
        delta_types=", ".join(f"{name}_delta numeric" for name in names),
        old_deltas=", ".join(f"o.{name}_delta" for name in names),
        new_deltas=", ".join(f"c.{name}_delta" for name in names),
    )
    # All parts are constants of this package. Statements contain no values of requests.
    return TableStatements(
        (f"CREATE TEMP TABLE IF NOT EXISTS {stage} ({defined}) ON COMMIT DELETE ROWS").encode(),
        (f"COPY {stage} FROM STDIN (FORMAT BINARY)").encode(),
        store.encode(),
        several.encode(),
        late.encode(),
        disordered.encode(),
        sql.SQL(correct),  # pyright: ignore[reportArgumentType]
    )


def _fill(
    kind: TargetKind,
    chosen: str,
    *,
    fresh: str,
    is_disordered: bool,
    left_over: str = "",
    around: str = "0",
) -> str:
    """Return a statement that stores rows.

    around: time before and after the new rows of a series whose rows are all read.
    """
    names = COLUMNS[kind]
    columns = ", ".join((*_KEY, *_RAW, *names))
    is_late = bool(chosen)

    def compare(left: str, sign: str, right: str, joined: str = " AND ") -> str:
        return joined.join(f"{left}{name} {sign} ({right}).{name}" for name in names)

    def grow(name: str) -> str:
        before = f"CASE WHEN has_skipped THEN (q).{name} ELSE p_{name} END"
        if is_disordered:
            # Within one start nothing counts anew.
            before = f"CASE WHEN has_same_start THEN least({before}, {name}) ELSE {before} END"
        return f"counter_delta({name}, {before}, counts_anew) AS {name}_delta"

    delta_names = ", ".join(f"{name}_delta" for name in names)
    chained = _CHAINED.format(
        ordered=_BY_START if is_disordered else "chain c",
        order=_ORDER_BY_START.format(steady=_STEADY.format("c"), total=" + ".join(names))
        if is_disordered
        else ("timestamp" if is_late else "place, timestamp"),
    )
    has_chain = fresh != _MET
    single = _SINGLE.replace("{chosen}", _NOT_BEHIND + _NOT_MULTIPLE if has_chain else _IN_ORDER)
    steady = _STEADY.format("c")
    words = {
        "table": kind,
        "columns": columns,
        "observation": f"ROW({', '.join((*_SEEN, *names))})::{kind}_observation",
        "around": f"INTERVAL '{around}'",
        "nothing": "g.time_series_id, g.server, NULL::timestamptz, NULL::timestamptz, "
        "NULL::timestamptz, NULL::text, NULL::float8, NULL::jsonb, "
        + ", ".join("NULL::numeric" for _ in names),
        "same_start_last": _SAME_START.format("s", "seen"),
        "not_less_last": compare("s.", ">=", "seen"),
        "more_last": f"({compare('s.', '>', 'seen', ' OR ')})",
        "steady": _STEADY.format("s"),
        "steady_last": _STEADY_SEEN.format("seen"),
        "not_behind": _NOT_BEHIND,
    }
    disorder = _DISORDER.format(
        same_start_p="has_same_start",
        not_less_p=" AND ".join(f"{name} >= p_{name}" for name in names),
        steady=steady,
        steady_p=_STEADY_SEEN.format("p"),
    )
    return _STORE.format(
        stage=f"{kind}_stage",
        table=kind,
        chosen=chosen,
        unsigned=", ".join(_UNSIGNED.format(name) for name in names),
        fresh=fresh.format(**words, met=_MET.format(**words)),
        chained=chained if has_chain else "",
        fields=", ".join(f"(p).{name} AS p_{name}" for name in names),
        single="" if is_late else "    UNION ALL" * has_chain + single.format(**words),
        same_start=_SAME_START.format("c", "p"),
        same_start_q=_SAME_START.format("c", "q"),
        not_less_q=compare("", ">=", "q"),
        same_counters=" AND ".join(f"{name} = p_{name}" for name in names),
        disorder="false" if is_disordered else disorder,
        once="MATERIALIZED " if is_late else "",
        key=", ".join(_KEY),
        raw=", ".join(_RAW),
        names=", ".join(names),
        deltas=",\n        ".join(map(grow, names)),
        delta_names=delta_names,
        is_disordered="true" if is_disordered else "false",
        is_known_last=_KNOWN_LAST.format(table=kind) if is_late else "",
        left_over=left_over,
        conflict="\n    ON CONFLICT DO NOTHING" if has_chain else "",
        changed=_CHANGED.format(key=", ".join(_KEY), delta_names=delta_names)
        if is_late
        else "NULL, NULL, NULL, NULL",
    )


STATEMENTS: dict[TargetKind, TableStatements] = {
    "ost": make_statements("ost"),
    "mdt": make_statements("mdt"),
}
