"""Reports of jobs: use of the allocation, and advice."""
