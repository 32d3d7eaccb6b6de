"""Programs that run in the kernel: all processes in one read, and what ended ones have used."""
