-- Tables of the store of Lustre jobstats.
--
-- ${partition_by_time} is empty with TimescaleDB, whose hypertables are made from plain tables,
-- and PARTITION BY RANGE (timestamp) without it.
--
-- Counters go up to 2^64-1, which no bigint holds. A column NAME is the counter as the server
-- printed it, NAME_delta is by how much it has grown since the observation `since`.

CREATE TABLE metadata (
    time_series_id uuid PRIMARY KEY,
    target text NOT NULL,
    entry_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('ost', 'mdt')),
    job_id bigint,          -- of jobs whose id is a number
    job text,               -- any job id
    user_id bigint,
    "user" text,
    group_id bigint,
    process_id bigint,
    nodename text,
    executable text,
    format text,            -- null: the sender parsed the id
    malformed boolean NOT NULL DEFAULT false,
    first_seen timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX metadata_target ON metadata (target, entry_id);
CREATE INDEX metadata_entry ON metadata (entry_id);
CREATE INDEX metadata_job ON metadata (job);
CREATE INDEX metadata_job_id ON metadata (job_id);
CREATE INDEX metadata_user ON metadata (user_id);
CREATE INDEX metadata_nodename ON metadata (nodename);

-- Secret: whoever knows a namespace can compute the id of a series from its target and entry.
CREATE TABLE namespaces (
    format text PRIMARY KEY,
    namespace uuid NOT NULL DEFAULT gen_random_uuid(),
    since timestamptz NOT NULL DEFAULT now()
);
REVOKE ALL ON namespaces FROM PUBLIC;

CREATE TABLE ost (
    time_series_id uuid NOT NULL,
    timestamp timestamptz NOT NULL,
    -- the observation that the deltas count from; null where none is known
    since timestamptz,
    read_bytes_delta numeric NOT NULL DEFAULT 0,
    write_bytes_delta numeric NOT NULL DEFAULT 0,
    read_delta numeric NOT NULL DEFAULT 0,
    write_delta numeric NOT NULL DEFAULT 0,
    setattr_delta numeric NOT NULL DEFAULT 0,
    punch_delta numeric NOT NULL DEFAULT 0,
    sync_delta numeric NOT NULL DEFAULT 0,
    get_info_delta numeric NOT NULL DEFAULT 0,
    set_info_delta numeric NOT NULL DEFAULT 0,
    quotactl_delta numeric NOT NULL DEFAULT 0,
    server text NOT NULL,
    snapshot_time timestamptz,
    start_time timestamptz,
    reset text,
    read_bytes numeric NOT NULL DEFAULT 0,
    write_bytes numeric NOT NULL DEFAULT 0,
    read numeric NOT NULL DEFAULT 0,
    write numeric NOT NULL DEFAULT 0,
    setattr numeric NOT NULL DEFAULT 0,
    punch numeric NOT NULL DEFAULT 0,
    sync numeric NOT NULL DEFAULT 0,
    get_info numeric NOT NULL DEFAULT 0,
    set_info numeric NOT NULL DEFAULT 0,
    quotactl numeric NOT NULL DEFAULT 0,
    others jsonb,
    others_delta jsonb
) ${partition_by_time};
CREATE UNIQUE INDEX ost_series ON ost (time_series_id, timestamp, server);
CREATE INDEX ost_time ON ost USING brin (timestamp) WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE mdt (
    time_series_id uuid NOT NULL,
    timestamp timestamptz NOT NULL,
    -- the observation that the deltas count from; null where none is known
    since timestamptz,
    open_delta numeric NOT NULL DEFAULT 0,
    close_delta numeric NOT NULL DEFAULT 0,
    mknod_delta numeric NOT NULL DEFAULT 0,
    link_delta numeric NOT NULL DEFAULT 0,
    unlink_delta numeric NOT NULL DEFAULT 0,
    mkdir_delta numeric NOT NULL DEFAULT 0,
    rmdir_delta numeric NOT NULL DEFAULT 0,
    rename_delta numeric NOT NULL DEFAULT 0,
    getattr_delta numeric NOT NULL DEFAULT 0,
    setattr_delta numeric NOT NULL DEFAULT 0,
    getxattr_delta numeric NOT NULL DEFAULT 0,
    setxattr_delta numeric NOT NULL DEFAULT 0,
    statfs_delta numeric NOT NULL DEFAULT 0,
    sync_delta numeric NOT NULL DEFAULT 0,
    samedir_rename_delta numeric NOT NULL DEFAULT 0,
    crossdir_rename_delta numeric NOT NULL DEFAULT 0,
    server text NOT NULL,
    snapshot_time timestamptz,
    start_time timestamptz,
    reset text,
    open numeric NOT NULL DEFAULT 0,
    close numeric NOT NULL DEFAULT 0,
    mknod numeric NOT NULL DEFAULT 0,
    link numeric NOT NULL DEFAULT 0,
    unlink numeric NOT NULL DEFAULT 0,
    mkdir numeric NOT NULL DEFAULT 0,
    rmdir numeric NOT NULL DEFAULT 0,
    rename numeric NOT NULL DEFAULT 0,
    getattr numeric NOT NULL DEFAULT 0,
    setattr numeric NOT NULL DEFAULT 0,
    getxattr numeric NOT NULL DEFAULT 0,
    setxattr numeric NOT NULL DEFAULT 0,
    statfs numeric NOT NULL DEFAULT 0,
    sync numeric NOT NULL DEFAULT 0,
    samedir_rename numeric NOT NULL DEFAULT 0,
    crossdir_rename numeric NOT NULL DEFAULT 0,
    others jsonb,
    others_delta jsonb
) ${partition_by_time};
CREATE UNIQUE INDEX mdt_series ON mdt (time_series_id, timestamp, server);
CREATE INDEX mdt_time ON mdt USING brin (timestamp) WITH (pages_per_range = 16, autosummarize = on);

-- Jobs of Slurm, as the agent `jobs` sends them; the last run of a job that was requeued.
CREATE TABLE jobs (
    cluster text NOT NULL,
    job_id bigint NOT NULL,
    user_name text,
    account text,
    partition text,
    job_name text,
    state text NOT NULL,
    submit_time timestamptz,
    start_time timestamptz,
    end_time timestamptz,
    reported timestamptz NOT NULL,
    PRIMARY KEY (job_id, cluster)
);
CREATE INDEX jobs_account ON jobs (account);

-- What the store was told to do, shown by `status`.
CREATE TABLE store_options (
    name text PRIMARY KEY,
    value text NOT NULL
);
