"""Parts of SQL statements for late rows, and for rows in disorder after a step of a clock."""

from __future__ import annotations

FRESH_LATE = """
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
CHOSEN = """
    JOIN unnest(%(series)s::uuid[], %(servers)s::text[]) AS g (time_series_id, server)
        USING (time_series_id, server)"""
KNOWN_LAST = """
        AND NOT EXISTS (
            SELECT FROM {table}_last l
            WHERE l.time_series_id = c.time_series_id AND l.server = c.server
                AND NOT EXISTS (
                    SELECT FROM chain k
                    WHERE k.time_series_id = c.time_series_id AND k.server = c.server
                        AND k.timestamp = l.timestamp
                )
        )"""
BY_START = """(
        SELECT
            *,
            first_value(start_time) OVER (
                PARTITION BY time_series_id, server ORDER BY start_time
                RANGE BETWEEN INTERVAL '1 second' PRECEDING AND CURRENT ROW
            ) AS began
        FROM chain
    ) AS c"""
ORDER_BY_START = """
        coalesce(began, {steady}),
        CASE WHEN began IS NOT NULL THEN {total} END,
        snapshot_time, {steady}"""
CHANGED = """(
        SELECT jsonb_agg(r)::text
        FROM (SELECT {key}, since, others_delta, {delta_names} FROM grown WHERE NOT is_fresh) r
    ),
    (SELECT array_agg(DISTINCT time_series_id) FROM grown WHERE NOT is_fresh),
    (SELECT min(timestamp) FROM grown WHERE NOT is_fresh),
    (SELECT max(timestamp) FROM grown WHERE NOT is_fresh)"""
CORRECT = """
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
DISORDERED = """disordered AS MATERIALIZED (
    SELECT DISTINCT time_series_id, server FROM linked c
    WHERE {}
),
"""
NOT_DISORDERED = """
    WHERE NOT EXISTS (
        SELECT FROM disordered d
        WHERE d.time_series_id = c.time_series_id AND d.server = c.server
    )"""
DISORDER = """({same_start_p} AND NOT ({not_less_p})
            OR NOT has_same_start AND (clock_step IS NOT NULL OR p_clock_step IS NOT NULL)
                AND {steady} < {steady_p})
        AND (reset IS NULL OR reset = 'snapshot_gap') AND NOT has_skipped"""
