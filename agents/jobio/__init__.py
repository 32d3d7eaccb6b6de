"""The agent `jobio`: what jobs read and write by file system, and what they send and receive."""
