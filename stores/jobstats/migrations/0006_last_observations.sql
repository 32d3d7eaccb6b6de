-- The last observation of each series and server, so that storing a row searches no older ones.
--
-- `before` is the observation before it, where the last one has no snapshot_time: it may be the
-- zeros of an entry that one reading has skipped.
-- is_disordered: the server's clock was set back, so that times don't have the order of the readings.
-- clock_step is by how much the server's clock was set since its agent's start, in seconds.

ALTER TABLE ost ADD COLUMN clock_step float8;
CREATE TYPE ost_observation AS (
    timestamp timestamptz,
    snapshot_time timestamptz,
    start_time timestamptz,
    clock_step float8,
    others jsonb,
    read_bytes numeric,
    write_bytes numeric,
    read numeric,
    write numeric,
    setattr numeric,
    punch numeric,
    sync numeric,
    get_info numeric,
    set_info numeric,
    quotactl numeric
);
CREATE TABLE ost_last (
    time_series_id uuid NOT NULL,
    server text NOT NULL,
    seen ost_observation NOT NULL,
    before ost_observation,
    is_disordered boolean NOT NULL DEFAULT false,
    PRIMARY KEY (time_series_id, server)
) WITH (fillfactor = 50);
INSERT INTO ost_last
SELECT time_series_id, server, seen, CASE WHEN (seen).snapshot_time IS NULL THEN before END
FROM (
    SELECT
        time_series_id, server, seen, lead(seen) OVER w AS before, row_number() OVER w AS n
    FROM (
        SELECT
            time_series_id, server, timestamp,
            ROW(
                timestamp, snapshot_time, start_time, clock_step, others,
                read_bytes, write_bytes, read, write, setattr, punch, sync, get_info,
                set_info, quotactl
            )::ost_observation AS seen
        FROM ost
    ) o
    WINDOW w AS (PARTITION BY time_series_id, server ORDER BY timestamp DESC)
) o
WHERE n = 1;

ALTER TABLE mdt ADD COLUMN clock_step float8;
CREATE TYPE mdt_observation AS (
    timestamp timestamptz,
    snapshot_time timestamptz,
    start_time timestamptz,
    clock_step float8,
    others jsonb,
    open numeric,
    close numeric,
    mknod numeric,
    link numeric,
    unlink numeric,
    mkdir numeric,
    rmdir numeric,
    rename numeric,
    getattr numeric,
    setattr numeric,
    getxattr numeric,
    setxattr numeric,
    statfs numeric,
    sync numeric,
    samedir_rename numeric,
    crossdir_rename numeric
);
CREATE TABLE mdt_last (
    time_series_id uuid NOT NULL,
    server text NOT NULL,
    seen mdt_observation NOT NULL,
    before mdt_observation,
    is_disordered boolean NOT NULL DEFAULT false,
    PRIMARY KEY (time_series_id, server)
) WITH (fillfactor = 50);
INSERT INTO mdt_last
SELECT time_series_id, server, seen, CASE WHEN (seen).snapshot_time IS NULL THEN before END
FROM (
    SELECT
        time_series_id, server, seen, lead(seen) OVER w AS before, row_number() OVER w AS n
    FROM (
        SELECT
            time_series_id, server, timestamp,
            ROW(
                timestamp, snapshot_time, start_time, clock_step, others,
                open, close, mknod, link, unlink, mkdir, rmdir, rename,
                getattr, setattr, getxattr, setxattr, statfs, sync, samedir_rename, crossdir_rename
            )::mdt_observation AS seen
        FROM mdt
    ) o
    WINDOW w AS (PARTITION BY time_series_id, server ORDER BY timestamp DESC)
) o
WHERE n = 1;
