"""The metric store: ClusterCockpit's interface over blocks of values in memory, and a log."""
