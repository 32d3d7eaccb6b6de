"""GPUs, for several agents: cards, their states and their processes."""
