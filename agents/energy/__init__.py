"""The agent `energy`: what the node and each job on it have used."""
