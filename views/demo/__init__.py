"""The demo: a store with pages, a simulated cluster, and this node."""
