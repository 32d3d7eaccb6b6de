"""The agent `energy`: energy of the node and of each of its jobs."""
