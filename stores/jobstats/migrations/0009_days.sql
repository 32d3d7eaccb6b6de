-- Sums of each series in each day (UTC), made from the sums of its 96 quarters of an hour.
--
-- A day's sums count only while `summed_days` has its end. They are few: no partitions, no chunks.

CREATE TABLE summed_days (
    timestamp timestamptz PRIMARY KEY
);
CREATE TABLE ost_days (LIKE ost_sums);
CREATE INDEX ost_days_time ON ost_days (timestamp);
CREATE TABLE mdt_days (LIKE mdt_sums);
CREATE INDEX mdt_days_time ON mdt_days (timestamp);

-- A day whose quarter is invalid is invalid.
CREATE FUNCTION forget_day() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
    DELETE FROM summed_days
    WHERE timestamp = INTERVAL '1 day'
        + date_bin('1 day', OLD.timestamp - INTERVAL '1 microsecond', TIMESTAMPTZ 'epoch');
    RETURN NULL;
END
$$$$;
CREATE TRIGGER forget_day AFTER DELETE ON summed_times
FOR EACH ROW EXECUTE FUNCTION forget_day();
