"""The cluster.json of ClusterCockpit, from what nodes know."""
