"""The agent `metrics`: node metrics for ClusterCockpit."""
