"""The control service: reading and setting controls of a node, within the node's policy."""
