"""Slurm's REST API as a source: jobs, queue, partitions and nodes from slurmrestd."""
