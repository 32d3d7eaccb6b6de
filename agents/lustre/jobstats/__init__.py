"""Jobstats: parsers, series, records and points."""
