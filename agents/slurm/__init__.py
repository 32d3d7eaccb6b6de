"""The agents `jobs` and `cluster`: what a Slurm master knows."""
