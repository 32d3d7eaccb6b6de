"""Kernel programs (BPF): all processes in one read, sums over ended processes, I/O of jobs."""
