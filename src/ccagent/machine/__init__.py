"""Access to the machine: files, programs, clock, and readers shared by several agents."""
