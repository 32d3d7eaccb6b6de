"""The metric store: ClusterCockpit's interface over values in memory and a write-ahead log."""
