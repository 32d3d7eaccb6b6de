"""Controls: what a cluster may ask a node, and set on it, within the node's policy."""
