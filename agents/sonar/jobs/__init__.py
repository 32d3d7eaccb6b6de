"""Jobs of processes: attribution, grouping, GPUs, control groups."""
