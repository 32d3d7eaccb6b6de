-- The table of jobs of metric stores and gateways: a row for each run of a job.
--
-- nodes, footprint and details are JSON as text, as in the table of SQLite.

CREATE TABLE job_runs (
    cluster text NOT NULL,
    job text NOT NULL,
    "user" text NOT NULL,
    state text NOT NULL,
    start bigint NOT NULL,  -- seconds since 1970
    stop bigint,            -- null while the job runs
    nodes text NOT NULL,
    footprint text,
    details text,
    PRIMARY KEY (cluster, job, start)
);
CREATE INDEX job_runs_job ON job_runs (job);
CREATE INDEX job_runs_stop ON job_runs (stop);
