"""Live display of this node: jobs, processes and cards."""
