-- Compression over all series of a chunk: a series alone has a dozen rows in a chunk, which save
-- nothing. Rows of a series stay together, so that few batches of 1000 rows contain it.

ALTER TABLE ost SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = '',
    timescaledb.compress_orderby = 'time_series_id, timestamp, server'
);
ALTER TABLE mdt SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = '',
    timescaledb.compress_orderby = 'time_series_id, timestamp, server'
);
ALTER TABLE ost_sums SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = '',
    timescaledb.compress_orderby = 'timestamp, time_series_id'
);
ALTER TABLE mdt_sums SET (
    timescaledb.compress,
    timescaledb.compress_segmentby = '',
    timescaledb.compress_orderby = 'timestamp, time_series_id'
);
