-- The targets' own state: the numbers that the agent's `statistics` report of a target at a time.
-- The names are those of its metrics without `lustre_`, and without `ost_` or `mdt_`.

CREATE TABLE target_state (
    target text NOT NULL,
    timestamp timestamptz NOT NULL,
    server text NOT NULL,
    numbers jsonb NOT NULL,
    PRIMARY KEY (target, timestamp, server)
);
CREATE INDEX target_state_time ON target_state USING brin (timestamp);
