-- The deltas of other counters are computed by the statements that store rows.

DROP FUNCTION others_delta(jsonb, jsonb, boolean, boolean);
