-- The rule for deltas, and views of them.

-- By how much a counter has grown: by its whole value if it counts anew, or has fallen.
-- Without an earlier observation nothing is known, unless it is said to count anew.
CREATE FUNCTION counter_delta(value numeric, before numeric, counts_anew boolean) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$$$
    SELECT CASE
        WHEN counts_anew OR value < before THEN value
        WHEN before IS NULL THEN 0
        ELSE value - before
    END
$$$$;

-- The same for the counters in `others`; one that is missing is 0. Null if none has grown.
CREATE FUNCTION others_delta(value jsonb, before jsonb, is_first boolean, counts_anew boolean)
RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$$$
    SELECT jsonb_object_agg(key, delta)
    FROM (
        SELECT key, counter_delta(
            text::numeric,
            CASE WHEN NOT is_first THEN coalesce((before ->> key)::numeric, 0) END,
            counts_anew
        ) AS delta
        FROM jsonb_each_text(value) AS each (key, text)
    ) AS grown
    WHERE delta <> 0
$$$$;

-- Rates of each counter, per second of the real time between two observations.
CREATE VIEW ost_rates AS
SELECT
    o.time_series_id, o.server, m.target, m.entry_id, m.job_id, m.job, m.user_id, m."user",
    m.nodename, m.executable, o.since, o.timestamp, s.seconds, o.reset,
    o.read_bytes_delta / nullif(s.seconds, 0) AS read_bytes,
    o.write_bytes_delta / nullif(s.seconds, 0) AS write_bytes,
    o.read_delta / nullif(s.seconds, 0) AS read,
    o.write_delta / nullif(s.seconds, 0) AS write,
    o.setattr_delta / nullif(s.seconds, 0) AS setattr,
    o.punch_delta / nullif(s.seconds, 0) AS punch,
    o.sync_delta / nullif(s.seconds, 0) AS sync,
    o.get_info_delta / nullif(s.seconds, 0) AS get_info,
    o.set_info_delta / nullif(s.seconds, 0) AS set_info,
    o.quotactl_delta / nullif(s.seconds, 0) AS quotactl
FROM ost o
JOIN metadata m USING (time_series_id)
CROSS JOIN LATERAL (SELECT extract(epoch FROM o.timestamp - o.since) AS seconds) s
WHERE o.since IS NOT NULL;

CREATE VIEW mdt_rates AS
SELECT
    o.time_series_id, o.server, m.target, m.entry_id, m.job_id, m.job, m.user_id, m."user",
    m.nodename, m.executable, o.since, o.timestamp, s.seconds, o.reset,
    o.open_delta / nullif(s.seconds, 0) AS open,
    o.close_delta / nullif(s.seconds, 0) AS close,
    o.mknod_delta / nullif(s.seconds, 0) AS mknod,
    o.link_delta / nullif(s.seconds, 0) AS link,
    o.unlink_delta / nullif(s.seconds, 0) AS unlink,
    o.mkdir_delta / nullif(s.seconds, 0) AS mkdir,
    o.rmdir_delta / nullif(s.seconds, 0) AS rmdir,
    o.rename_delta / nullif(s.seconds, 0) AS rename,
    o.getattr_delta / nullif(s.seconds, 0) AS getattr,
    o.setattr_delta / nullif(s.seconds, 0) AS setattr,
    o.getxattr_delta / nullif(s.seconds, 0) AS getxattr,
    o.setxattr_delta / nullif(s.seconds, 0) AS setxattr,
    o.statfs_delta / nullif(s.seconds, 0) AS statfs,
    o.sync_delta / nullif(s.seconds, 0) AS sync,
    o.samedir_rename_delta / nullif(s.seconds, 0) AS samedir_rename,
    o.crossdir_rename_delta / nullif(s.seconds, 0) AS crossdir_rename
FROM mdt o
JOIN metadata m USING (time_series_id)
CROSS JOIN LATERAL (SELECT extract(epoch FROM o.timestamp - o.since) AS seconds) s
WHERE o.since IS NOT NULL;

-- Each operation's delta in a row of its own.
CREATE VIEW deltas AS
SELECT
    o.time_series_id, o.server, m.kind, m.target, m.entry_id, m.job_id, m.job, m.user_id, m."user",
    m.nodename, m.executable, o.since, o.timestamp, d.operation, d.delta
FROM ost o
JOIN metadata m USING (time_series_id)
CROSS JOIN LATERAL (
    VALUES
        ('read_bytes', o.read_bytes_delta),
        ('write_bytes', o.write_bytes_delta),
        ('read', o.read_delta),
        ('write', o.write_delta),
        ('setattr', o.setattr_delta),
        ('punch', o.punch_delta),
        ('sync', o.sync_delta),
        ('get_info', o.get_info_delta),
        ('set_info', o.set_info_delta),
        ('quotactl', o.quotactl_delta)
    UNION ALL
    SELECT key, value::numeric FROM jsonb_each_text(o.others_delta)
) AS d (operation, delta)
WHERE d.delta <> 0
UNION ALL
SELECT
    o.time_series_id, o.server, m.kind, m.target, m.entry_id, m.job_id, m.job, m.user_id, m."user",
    m.nodename, m.executable, o.since, o.timestamp, d.operation, d.delta
FROM mdt o
JOIN metadata m USING (time_series_id)
CROSS JOIN LATERAL (
    VALUES
        ('open', o.open_delta),
        ('close', o.close_delta),
        ('mknod', o.mknod_delta),
        ('link', o.link_delta),
        ('unlink', o.unlink_delta),
        ('mkdir', o.mkdir_delta),
        ('rmdir', o.rmdir_delta),
        ('rename', o.rename_delta),
        ('getattr', o.getattr_delta),
        ('setattr', o.setattr_delta),
        ('getxattr', o.getxattr_delta),
        ('setxattr', o.setxattr_delta),
        ('statfs', o.statfs_delta),
        ('sync', o.sync_delta),
        ('samedir_rename', o.samedir_rename_delta),
        ('crossdir_rename', o.crossdir_rename_delta)
    UNION ALL
    SELECT key, value::numeric FROM jsonb_each_text(o.others_delta)
) AS d (operation, delta)
WHERE d.delta <> 0
;

-- All that was ever observed, by job, target and operation.
CREATE VIEW totals AS
SELECT coalesce(job, '') AS job, target, operation, sum(delta) AS total
FROM deltas
GROUP BY 1, 2, 3;

-- Each operation's delta of some series. Their ids stand in the call, so that compressed chunks
-- are searched by them.
CREATE FUNCTION series_deltas(series uuid[], begins timestamptz, ends timestamptz)
RETURNS TABLE (
    time_series_id uuid, since timestamptz, "timestamp" timestamptz, operation text, delta numeric
) LANGUAGE sql STABLE AS $$$$
    SELECT o.time_series_id, o.since, o.timestamp, d.operation, d.delta
    FROM ost o
    CROSS JOIN LATERAL (
        VALUES
            ('read_bytes', o.read_bytes_delta),
            ('write_bytes', o.write_bytes_delta),
            ('read', o.read_delta),
            ('write', o.write_delta),
            ('setattr', o.setattr_delta),
            ('punch', o.punch_delta),
            ('sync', o.sync_delta),
            ('get_info', o.get_info_delta),
            ('set_info', o.set_info_delta),
            ('quotactl', o.quotactl_delta)
        UNION ALL
        SELECT key, value::numeric FROM jsonb_each_text(o.others_delta)
    ) AS d (operation, delta)
    WHERE o.time_series_id = ANY (series) AND d.delta <> 0
        AND o.timestamp > begins AND o.timestamp <= ends
    UNION ALL
    SELECT o.time_series_id, o.since, o.timestamp, d.operation, d.delta
    FROM mdt o
    CROSS JOIN LATERAL (
        VALUES
            ('open', o.open_delta),
            ('close', o.close_delta),
            ('mknod', o.mknod_delta),
            ('link', o.link_delta),
            ('unlink', o.unlink_delta),
            ('mkdir', o.mkdir_delta),
            ('rmdir', o.rmdir_delta),
            ('rename', o.rename_delta),
            ('getattr', o.getattr_delta),
            ('setattr', o.setattr_delta),
            ('getxattr', o.getxattr_delta),
            ('setxattr', o.setxattr_delta),
            ('statfs', o.statfs_delta),
            ('sync', o.sync_delta),
            ('samedir_rename', o.samedir_rename_delta),
            ('crossdir_rename', o.crossdir_rename_delta)
        UNION ALL
        SELECT key, value::numeric FROM jsonb_each_text(o.others_delta)
    ) AS d (operation, delta)
    WHERE o.time_series_id = ANY (series) AND d.delta <> 0
        AND o.timestamp > begins AND o.timestamp <= ends
$$$$;

-- Rates in even steps, per second: a delta counts for the whole time since the observation before,
-- so that steps without an observation are interpolated.
CREATE FUNCTION interpolated_rates(
    series uuid[], begins timestamptz, ends timestamptz, step interval
)
RETURNS TABLE (
    step_begin timestamptz, time_series_id uuid, operation text, rate numeric
) LANGUAGE sql STABLE AS $$$$
    WITH observed AS MATERIALIZED (
        SELECT * FROM series_deltas(series, begins, ends + INTERVAL '1 day')
    )
    SELECT
        s.step_begin, d.time_series_id, d.operation,
        sum(
            d.delta
            * extract(epoch FROM
                least(d.timestamp, s.step_begin + step) - greatest(d.since, s.step_begin))
            / extract(epoch FROM d.timestamp - d.since)
        ) / extract(epoch FROM step)
    FROM generate_series(begins, ends - INTERVAL '1 microsecond', step) AS s (step_begin)
    JOIN observed d ON d.since < s.step_begin + step AND d.timestamp > s.step_begin
    GROUP BY 1, 2, 3
$$$$;
