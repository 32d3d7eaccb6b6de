"""The agent `jobio`: I/O of jobs by file system, and their network traffic."""
