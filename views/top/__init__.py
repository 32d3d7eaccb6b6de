"""This node, live: its jobs, their processes and cards."""
