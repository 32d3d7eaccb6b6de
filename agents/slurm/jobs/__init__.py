"""The agent `jobs`: new and changed jobs of Slurm."""
