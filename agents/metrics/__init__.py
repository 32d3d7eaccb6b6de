"""The agent `metrics`: node metrics as ClusterCockpit shows them."""
