"""Sources of energy on a node: counters and meters, as deltas of domains."""
