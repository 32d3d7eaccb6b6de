"""Generator of ClusterCockpit's cluster.json from facts of the nodes."""
