"""The agent `cluster`: Slurm partitions and nodes."""
