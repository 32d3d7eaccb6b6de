"""Control groups of jobs: where they are, and what they account for."""
