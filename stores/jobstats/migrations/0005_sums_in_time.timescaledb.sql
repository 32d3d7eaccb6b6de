-- Chunks of the sums, dropped with those of the observations.
SELECT create_hypertable('ost_sums', 'timestamp', chunk_time_interval => INTERVAL '${chunk_interval}');
SELECT create_hypertable('mdt_sums', 'timestamp', chunk_time_interval => INTERVAL '${chunk_interval}');
