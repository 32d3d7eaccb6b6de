"""Pages of the store: cluster, node, job and job list; they can be read without scripts."""
