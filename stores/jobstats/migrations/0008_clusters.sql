-- The cluster of a series' job, by the rules of the configuration; null without a rule that matches.
-- Two clusters that use one file system have jobs with equal numbers.

ALTER TABLE metadata ADD COLUMN cluster text;

DO $$$$
DECLARE
    name text;
    body text;
BEGIN
    DROP VIEW totals;
    FOREACH name IN ARRAY ARRAY['ost_rates', 'mdt_rates', 'deltas'] LOOP
        body := pg_get_viewdef(name::regclass);
        EXECUTE format('DROP VIEW %I', name);
        EXECUTE format(
            'CREATE VIEW %I AS %s', name, replace(body, 'm.executable,', 'm.executable, m.cluster,')
        );
    END LOOP;
END
$$$$;

-- All that was ever observed, by cluster, job, target and operation.
CREATE VIEW totals AS
SELECT cluster, coalesce(job, '') AS job, target, operation, sum(delta) AS total
FROM deltas
GROUP BY 1, 2, 3, 4;
