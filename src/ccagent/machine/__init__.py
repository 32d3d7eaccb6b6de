"""Access to the machine: files, programs, clock, and what several agents read."""
