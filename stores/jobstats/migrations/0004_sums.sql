-- Sums of each series in each quarter of an hour, for questions about long times.
--
-- A row sums the deltas after `timestamp` - 15 minutes, up to `timestamp`. It counts only while
-- `summed_times` has its time: storing a row of that quarter removes it there, in the same
-- transaction, and the store computes the sums again.

CREATE TABLE summed_times (
    timestamp timestamptz PRIMARY KEY
);

-- The end of the quarter of an hour that a time belongs to.
CREATE FUNCTION quarter_end(moment timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$$$
    SELECT date_bin('15 minutes', moment - INTERVAL '1 microsecond', TIMESTAMPTZ 'epoch')
        + INTERVAL '15 minutes'
$$$$;

CREATE TABLE ost_sums (
    time_series_id uuid NOT NULL,
    timestamp timestamptz NOT NULL,
    read_bytes_delta numeric NOT NULL,
    write_bytes_delta numeric NOT NULL,
    read_delta numeric NOT NULL,
    write_delta numeric NOT NULL,
    setattr_delta numeric NOT NULL,
    punch_delta numeric NOT NULL,
    sync_delta numeric NOT NULL,
    get_info_delta numeric NOT NULL,
    set_info_delta numeric NOT NULL,
    quotactl_delta numeric NOT NULL,
    others_delta jsonb
) ${partition_by_time};
CREATE INDEX ost_sums_time ON ost_sums (timestamp);

CREATE TABLE mdt_sums (
    time_series_id uuid NOT NULL,
    timestamp timestamptz NOT NULL,
    open_delta numeric NOT NULL,
    close_delta numeric NOT NULL,
    mknod_delta numeric NOT NULL,
    link_delta numeric NOT NULL,
    unlink_delta numeric NOT NULL,
    mkdir_delta numeric NOT NULL,
    rmdir_delta numeric NOT NULL,
    rename_delta numeric NOT NULL,
    getattr_delta numeric NOT NULL,
    setattr_delta numeric NOT NULL,
    getxattr_delta numeric NOT NULL,
    setxattr_delta numeric NOT NULL,
    statfs_delta numeric NOT NULL,
    sync_delta numeric NOT NULL,
    samedir_rename_delta numeric NOT NULL,
    crossdir_rename_delta numeric NOT NULL,
    others_delta jsonb
) ${partition_by_time};
CREATE INDEX mdt_sums_time ON mdt_sums (timestamp);
