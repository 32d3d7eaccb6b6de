"""The daemon: schedule, threads of agents, signals, status."""
