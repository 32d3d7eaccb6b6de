"""The agent `energy`: energy of the node and of each job on it."""
