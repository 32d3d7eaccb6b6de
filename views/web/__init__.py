"""Pages of the store: cluster, node, job and job list, made by the server, readable without scripts."""
