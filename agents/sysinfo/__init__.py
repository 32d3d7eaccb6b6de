"""The agent `sysinfo`: hardware, topology and software of this node."""
