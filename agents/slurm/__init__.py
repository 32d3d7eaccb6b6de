"""The agents `jobs` and `cluster`: data of a Slurm controller."""
