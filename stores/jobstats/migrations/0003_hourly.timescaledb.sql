-- Hypertables, and what TimescaleDB keeps up to date: growth of each series in each hour.
-- Compression, continuous aggregates and policies need TimescaleDB's own licence (TSL).

SELECT create_hypertable('ost', 'timestamp', chunk_time_interval => INTERVAL '${chunk_interval}');
SELECT create_hypertable('mdt', 'timestamp', chunk_time_interval => INTERVAL '${chunk_interval}');
ALTER TABLE ost SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = 'time_series_id',
    timescaledb.compress_orderby = 'timestamp, server'
);
ALTER TABLE mdt SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = 'time_series_id',
    timescaledb.compress_orderby = 'timestamp, server'
);

CREATE MATERIALIZED VIEW ost_hourly
WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT
    time_series_id,
    time_bucket(INTERVAL '1 hour', timestamp) AS hour,
    sum(read_bytes_delta) AS read_bytes,
    sum(write_bytes_delta) AS write_bytes,
    sum(read_delta) AS read,
    sum(write_delta) AS write,
    sum(setattr_delta) AS setattr,
    sum(punch_delta) AS punch,
    sum(sync_delta) AS sync,
    sum(get_info_delta) AS get_info,
    sum(set_info_delta) AS set_info,
    sum(quotactl_delta) AS quotactl
FROM ost
GROUP BY 1, 2
WITH NO DATA;

CREATE MATERIALIZED VIEW mdt_hourly
WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
SELECT
    time_series_id,
    time_bucket(INTERVAL '1 hour', timestamp) AS hour,
    sum(open_delta) AS open,
    sum(close_delta) AS close,
    sum(mknod_delta) AS mknod,
    sum(link_delta) AS link,
    sum(unlink_delta) AS unlink,
    sum(mkdir_delta) AS mkdir,
    sum(rmdir_delta) AS rmdir,
    sum(rename_delta) AS rename,
    sum(getattr_delta) AS getattr,
    sum(setattr_delta) AS setattr,
    sum(getxattr_delta) AS getxattr,
    sum(setxattr_delta) AS setxattr,
    sum(statfs_delta) AS statfs,
    sum(sync_delta) AS sync,
    sum(samedir_rename_delta) AS samedir_rename,
    sum(crossdir_rename_delta) AS crossdir_rename
FROM mdt
GROUP BY 1, 2
WITH NO DATA;
