"""The agent `lustre`: what jobs read and write, on the servers and clients of Lustre."""
