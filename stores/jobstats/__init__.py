"""The store of Lustre jobstats: the counters of all entries, in PostgreSQL."""
