-- Deltas of counters in `others`. The smallest and the largest value of an operation are no counters,
-- and have no deltas. A sum of squares overflows at 2^64. Null if nothing has grown.

CREATE OR REPLACE FUNCTION others_delta(
    value jsonb, before jsonb, is_first boolean, counts_anew boolean
)
RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$$$
    SELECT jsonb_object_agg(key, delta)
    FROM (
        SELECT key, counter_delta(
            text::numeric + CASE
                WHEN right(key, 6) = '_sumsq' AND NOT counts_anew
                    AND (before ->> key)::numeric - text::numeric > 9223372036854775808
                THEN 18446744073709551616
                ELSE 0
            END,
            CASE WHEN NOT is_first THEN coalesce((before ->> key)::numeric, 0) END,
            counts_anew
        ) AS delta
        FROM jsonb_each_text(value) AS each (key, text)
        WHERE right(key, 4) NOT IN ('_min', '_max')
    ) AS grown
    WHERE delta <> 0
$$$$;
