"""Sources of processes: /proc, psutil, programs in the kernel."""
