"""The store of Lustre jobstats: the counters of every entry, in PostgreSQL."""
