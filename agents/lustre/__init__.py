"""The agent `lustre`: I/O of jobs, on Lustre servers and clients."""
