"""GPUs for the agents `sample` and `sysinfo`: cards, their state, and the processes on them."""
