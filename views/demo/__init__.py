"""Everything in one command: a store with pages, a simulated cluster, and this node."""
