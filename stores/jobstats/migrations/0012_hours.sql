-- Sums of each series in each hour, made from those of its 4 quarters, and for those of its day.
--
-- An hour's sums count only while `summed_hours` has its end. They are few: no partitions, no chunks.

CREATE TABLE summed_hours (
    timestamp timestamptz PRIMARY KEY
);
CREATE TABLE ost_hours (LIKE ost_sums);
CREATE INDEX ost_hours_time ON ost_hours (timestamp);
CREATE TABLE mdt_hours (LIKE mdt_sums);
CREATE INDEX mdt_hours_time ON mdt_hours (timestamp);

-- An hour and a day whose quarter is invalid are invalid.
CREATE OR REPLACE FUNCTION forget_day() RETURNS trigger LANGUAGE plpgsql AS $$$$
BEGIN
    DELETE FROM summed_hours
    WHERE timestamp = INTERVAL '1 hour'
        + date_bin('1 hour', OLD.timestamp - INTERVAL '1 microsecond', TIMESTAMPTZ 'epoch');
    DELETE FROM summed_days
    WHERE timestamp = INTERVAL '1 day'
        + date_bin('1 day', OLD.timestamp - INTERVAL '1 microsecond', TIMESTAMPTZ 'epoch');
    RETURN NULL;
END
$$$$;
