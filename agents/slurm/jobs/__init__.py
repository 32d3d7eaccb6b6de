"""The agent `jobs`: new and changed Slurm jobs."""
