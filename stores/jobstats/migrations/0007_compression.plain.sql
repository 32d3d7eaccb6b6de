-- Only TimescaleDB compresses.
SELECT 1;
