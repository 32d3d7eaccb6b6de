"""Web pages of the store: cluster, node, job and job list. They work without JavaScript."""
