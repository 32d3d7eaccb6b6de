"""Control groups of jobs: their directories and counters."""
