"""Configuration cluster.json of ClusterCockpit, written from facts of the nodes."""
