"""GPUs, for several agents: cards, their state, and the processes on them."""
