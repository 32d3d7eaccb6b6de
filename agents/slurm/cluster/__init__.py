"""The agent `cluster`: partitions and nodes of Slurm."""
