-- No query needs statistics of whole observations, whose computation is expensive.

ALTER TABLE ost_last ALTER seen SET STATISTICS 0, ALTER before SET STATISTICS 0;
ALTER TABLE mdt_last ALTER seen SET STATISTICS 0, ALTER before SET STATISTICS 0;
