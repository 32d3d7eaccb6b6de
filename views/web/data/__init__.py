"""Data of the pages, from the store and its table of jobs."""
