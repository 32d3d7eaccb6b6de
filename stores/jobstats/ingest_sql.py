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

from ccagent.stores.jobstats.late_sql import (
    BY_START,
    CHANGED,
    CHOSEN,
    CORRECT,
    DISORDER,
    DISORDERED,
    FRESH_LATE,
    KNOWN_LAST,
    NOT_DISORDERED,
    ORDER_BY_START,
)
from ccagent.stores.jobstats.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.stores.jobstats.schema import TargetKind

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
"""The first fields of the type KIND_observation, and of a last observation. Counters follow."""

_SAME_START = (
    "{0}.start_time BETWEEN {1}start_time - INTERVAL '1 second' "
    "AND {1}start_time + INTERVAL '1 second'"
)
"""Lustre 2.15.0 prints times since boot. Converted times differ slightly after a sender's restart.
"""
_STEADY = "{0}.timestamp - coalesce({0}.clock_step, 0) * INTERVAL '1 second'"
_STEADY_SEEN = "{0}timestamp - coalesce({0}clock_step, 0) * INTERVAL '1 second'"
"""The time without the steps of the server's clock that the sender has noticed."""

_MET = """
met AS {once}(
    SELECT s.*, {last_names}, l.before, l.is_disordered, l.place_of_last
    FROM staged s
    LEFT JOIN LATERAL (
        SELECT {last}, before, is_disordered, ctid AS place_of_last FROM {table}_last l
        WHERE l.time_series_id = s.time_series_id AND l.server = s.server LIMIT 1
    ) l ON true
    WHERE {last_timestamp} IS DISTINCT FROM s.timestamp
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
        {previous}, s.before AS q, true AS is_last{place}
    FROM met s{chosen}"""
"""Series with one row in the array. Its last observations are found already."""

_NOT_MULTIPLE = """ AND NOT EXISTS (
        SELECT FROM multiple m
        WHERE m.time_series_id = s.time_series_id AND m.server = s.server
    )"""

_CHAINED = """
    SELECT
        *,
        lag(seen) OVER w AS p,
        lag(seen, 2) OVER w AS q,
        lead(true) OVER w IS NULL AS is_last
    FROM {ordered}
    WINDOW w AS (PARTITION BY time_series_id, server ORDER BY {order})"""

_NUMBERED = "SELECT *, {fields} FROM ({rows}\n    ) n"
_STORE = """
WITH staged AS (
    SELECT time_series_id, server, reset, clock_step, others, timestamp, snapshot_time,
        start_time, {unsigned}
    FROM {stage} s{chosen}
),
{fresh}
numbered AS ({numbered}
),
linked AS (
    SELECT
        *,
        coalesce({same_start}, false) AS has_same_start,
        -- What stands before the zeros of an entry that one reading skipped, so that it is the
        -- same one, or of a killed sender that has forgotten it: then these zeros don't count.
        coalesce(
            p_timestamp IS NOT NULL AND p_snapshot_time IS NULL
            AND (reset = 'absent'
                OR reset IS NULL AND (q).timestamp > timestamp - INTERVAL '1 day')
            AND (
                {same_start_q}
                OR start_time IS NULL AND (q).start_time IS NULL AND (
                    snapshot_time = (q).snapshot_time
                    OR snapshot_time > (q).snapshot_time
                    AND snapshot_time <= p_timestamp - INTERVAL '1 second'
                )
            )
            AND {not_less_q},
            false
        ) AS has_skipped
    FROM numbered c
    WHERE is_fresh OR is_later
    OFFSET 0  -- Fields are read once, not where they are used.
),
{disordered}computed AS MATERIALIZED (
    SELECT
        {key}, is_fresh, is_last{is_left_over}, {raw}, {names},
        CASE WHEN has_skipped THEN (q).timestamp ELSE p_timestamp END AS time_before,
        CASE WHEN has_skipped THEN (q).others ELSE p_others END AS others_before,
        {before},
        p_timestamp IS NULL AS is_first,
        NOT has_skipped AND coalesce(
            -- A sender that was killed says again what is known already: nothing counts twice.
            reset = 'start_time' AND NOT has_same_start
            OR reset = 'absent' AND p_snapshot_time IS NULL
            OR reset = 'decreased' AND NOT coalesce(
                snapshot_time = p_snapshot_time AND {same_counters}, false
            )
            -- It may also be that the record with the reset was lost.
            OR start_time > p_snapshot_time
                AND start_time > p_start_time + INTERVAL '1 second'
            OR p_timestamp IS NULL AND %(counts_first)s,
            false
        ) AS counts_anew,
        CASE WHEN snapshot_time IS NULL AND p_timestamp IS NOT NULL THEN {previous} END
            AS seen_before
    FROM linked c{not_disordered}
),
grown AS {once}(
    SELECT
        {key}, {raw}, is_fresh, {names},
        CASE
            WHEN time_before < timestamp THEN time_before
            WHEN time_before IS NULL AND %(counts_first)s AND start_time < timestamp
                THEN start_time
        END AS since,
        CASE WHEN others IS NOT NULL THEN {others_delta} END AS others_delta,
        {deltas}
    FROM {ordered} c
),
inserted AS (
    INSERT INTO {table} ({key}, {raw}, since, {names}, others_delta, {delta_names})
    SELECT {key}, {raw}, since, {names}, others_delta, {delta_names}
    FROM grown WHERE is_fresh{conflict}
    RETURNING 1
),
{renewed}last_ones AS (
    INSERT INTO {table}_last AS l (time_series_id, server, {seen}, before, is_disordered)
    SELECT time_series_id, server, {seen}, seen_before, {is_disordered}
    FROM {ordered} c
    WHERE is_last{is_known_last}
    ON CONFLICT (time_series_id, server) DO UPDATE
    SET {seen_excluded}, before = excluded.before,
        is_disordered = l.is_disordered OR excluded.is_disordered
            OR l.timestamp > excluded.timestamp
    RETURNING 1
),
unsummed AS (
    DELETE FROM summed_times WHERE timestamp = ANY (ARRAY(
        SELECT quarter_end(timestamp) FROM (SELECT DISTINCT timestamp FROM {ordered} c) c
    ))
),
left_over AS (
    {left_over}
)
SELECT
    {count},
    (SELECT array_agg(time_series_id) FROM left_over WHERE NOT is_disordered),
    (SELECT array_agg(server) FROM left_over WHERE NOT is_disordered),
    (SELECT array_agg(time_series_id) FROM left_over WHERE is_disordered),
    (SELECT array_agg(server) FROM left_over WHERE is_disordered),
    {changed}
"""
_OTHERS_DELTA = """(
            SELECT jsonb_object_agg(key, delta)
            FROM (
                SELECT key, counter_delta(
                    CASE
                        -- A sum of squares overflows at 2^64.
                        WHEN before - value > 9223372036854775808 AND right(key, 6) = '_sumsq'
                            AND NOT counts_anew
                        THEN value + 18446744073709551616
                        ELSE value
                    END,
                    before,
                    counts_anew
                ) AS delta
                FROM (
                    SELECT
                        key,
                        (others -> key)::numeric AS value,
                        CASE WHEN NOT is_first THEN
                            coalesce((others_before -> key)::numeric, 0)
                        END AS before
                    FROM (SELECT jsonb_object_keys(others) AS key) AS k
                    -- The smallest and the largest value are no counters.
                    WHERE right(key, 4) NOT IN ('_min', '_max')
                    OFFSET 0
                ) AS v
                OFFSET 0
            ) AS d
            WHERE delta <> 0
        )"""
"""By how much the counters in `others` have grown; a missing one was 0. Null if none has grown.

A function would cost more than all the rest of the statement, because each call is set up anew.
So does `jsonb_each`, which returns a table.
"""

_RENEWED = """renewed AS (
    UPDATE {table}_last l SET {seen_new}, before = seen_before
    FROM {ordered} c WHERE l.ctid = c.place_of_last
    RETURNING 1
),
"""
"""Where each series has one row, its last observation is where it was found. No index is needed."""
_ALL_ONES = """(SELECT count(*) FROM inserted HAVING count(*) =
        (SELECT count(*) FROM renewed) + (SELECT count(*) FROM last_ones))"""
"""Null if the retention has just removed a last observation."""

_LEFT_OVER = "SELECT time_series_id, server, true AS is_disordered FROM "
_BEHIND = """SELECT time_series_id, server, is_disordered FROM behind
    UNION ALL
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
    store = _fill(kind, "", fresh=_MET, is_disordered=False)
    several = _fill(kind, "", fresh=_FRESH, left_over=_BEHIND, is_disordered=False)
    late = _fill(kind, CHOSEN, fresh=FRESH_LATE, around="0", is_disordered=False)
    disordered = _fill(kind, CHOSEN, fresh=FRESH_LATE, around="2 days", is_disordered=True)
    correct = CORRECT.format(
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
    seen = (*_SEEN, *names)
    columns = ", ".join((*_KEY, *_RAW, *names))
    is_late = bool(chosen)

    def compare(left: str, sign: str, right: str, joined: str = " AND ") -> str:
        return joined.join(f"{left}{name} {sign} ({right}).{name}" for name in names)

    def find_before(name: str) -> str:
        before = f"CASE WHEN has_skipped THEN (q).{name} ELSE p_{name} END"
        if is_disordered:
            # Within one start nothing counts anew.
            before = f"CASE WHEN has_same_start THEN least({before}, {name}) ELSE {before} END"
        return f"{before} AS {name}_before"

    delta_names = ", ".join(f"{name}_delta" for name in names)
    chained = _CHAINED.format(
        ordered=BY_START if is_disordered else "chain c",
        order=ORDER_BY_START.format(steady=_STEADY.format("c"), total=" + ".join(names))
        if is_disordered
        else ("timestamp" if is_late else "place, timestamp"),
    )
    has_chain = fresh != _MET
    chosen_single = f"\n    WHERE {_NOT_BEHIND}{_NOT_MULTIPLE}" if has_chain else ""
    steady = _STEADY.format("c")
    words = {
        "table": kind,
        "columns": columns,
        "observation": _make_row(kind, seen),
        "around": f"INTERVAL '{around}'",
        "nothing": "g.time_series_id, g.server, NULL::timestamptz, NULL::timestamptz, "
        "NULL::timestamptz, NULL::text, NULL::float8, NULL::jsonb, "
        + ", ".join("NULL::numeric" for _ in names),
        "same_start_last": _SAME_START.format("s", "(seen)."),
        "not_less_last": compare("s.", ">=", "seen"),
        "more_last": f"({compare('s.', '>', 'seen', ' OR ')})",
        "steady": _STEADY.format("s"),
        "steady_last": _STEADY_SEEN.format("(seen)."),
        "not_behind": _NOT_BEHIND,
    }
    is_alone = not has_chain
    words |= {
        "once": "" if is_alone else "MATERIALIZED ",
        "chosen": chosen_single,
        "seen_new": ", ".join(f"{name} = c.{name}" for name in seen),
        **_name_last(kind, seen, is_alone=is_alone),
        "place": ", s.place_of_last" if is_alone else "",
        "ordered": "(SELECT * FROM computed WHERE NOT is_left_over)" if is_alone else "computed",
    }
    numbered = "" if is_late else _SINGLE.format(**words)
    if has_chain:
        union = "    UNION ALL" if numbered else ""
        fields = ", ".join(f"(p).{name} AS p_{name}" for name in seen)
        numbered = _NUMBERED.format(fields=fields, rows=f"{chained}{union}{numbered}")
    disorder = DISORDER.format(
        same_start_p="has_same_start",
        not_less_p=" AND ".join(f"{name} >= p_{name}" for name in names),
        steady=steady,
        steady_p=_STEADY_SEEN.format("p_"),
    )
    return _STORE.format(
        stage=f"{kind}_stage",
        table=kind,
        chosen=chosen,
        unsigned=", ".join(_UNSIGNED.format(name) for name in names),
        fresh=fresh.format(**words, met=_MET.format(**words)),
        numbered=numbered,
        previous=_make_row(kind, [f"p_{name}" for name in seen]),
        same_start=_SAME_START.format("c", "p_"),
        same_start_q=_SAME_START.format("c", "(q)."),
        not_less_q=compare("", ">=", "q"),
        same_counters=" AND ".join(f"{name} = p_{name}" for name in names),
        disordered="" if is_alone else DISORDERED.format("false" if is_disordered else disorder),
        seen=", ".join(seen),
        seen_excluded=", ".join(f"{name} = excluded.{name}" for name in seen),
        before=",\n        ".join(map(find_before, names)),
        is_left_over=", place_of_last,\n        "
        f"coalesce(timestamp < p_timestamp OR {disorder}, false) AS is_left_over"
        if is_alone
        else "",
        not_disordered="" if is_alone else NOT_DISORDERED,
        ordered=words["ordered"],
        renewed=_RENEWED.format(**words) if is_alone else "",
        count=_ALL_ONES if is_alone else "(SELECT count(*) FROM inserted)",
        once="MATERIALIZED " if is_late else "",
        key=", ".join(_KEY),
        raw=", ".join(_RAW),
        names=", ".join(names),
        others_delta=_OTHERS_DELTA,
        deltas=",\n        ".join(
            f"counter_delta({name}, {name}_before, counts_anew) AS {name}_delta" for name in names
        ),
        delta_names=delta_names,
        is_disordered="true" if is_disordered else "false",
        is_known_last=KNOWN_LAST.format(table=kind)
        if is_late
        else " AND place_of_last IS NULL" * is_alone,
        left_over=left_over
        + _LEFT_OVER
        + ("computed WHERE is_left_over" if is_alone else "disordered"),
        conflict=" ORDER BY timestamp ON CONFLICT DO NOTHING" * has_chain,
        changed=CHANGED.format(key=", ".join(_KEY), delta_names=delta_names)
        if is_late
        else "NULL, NULL, NULL, NULL",
    )


def _make_row(kind: TargetKind, names: Iterable[str]) -> str:
    return f"ROW({', '.join(names)})::{kind}_observation"


def _name_last(kind: TargetKind, seen: Iterable[str], *, is_alone: bool) -> dict[str, str]:
    """Return how to read a last observation: as columns, or as a row, for chains."""
    if not is_alone:
        return {
            "last": f"{_make_row(kind, seen)} AS seen",
            "last_names": "l.seen",
            "last_timestamp": "(l.seen).timestamp",
            "previous": "s.seen AS p",
        }
    return {
        "last": ", ".join(f"{name} AS p_{name}" for name in seen),
        "last_names": ", ".join(f"l.p_{name}" for name in seen),
        "last_timestamp": "l.p_timestamp",
        "previous": ", ".join(f"s.p_{name}" for name in seen),
    }


STATEMENTS: dict[TargetKind, TableStatements] = {
    "ost": make_statements("ost"),
    "mdt": make_statements("mdt"),
}
