"""What pages show, read from the store and its table of jobs."""
