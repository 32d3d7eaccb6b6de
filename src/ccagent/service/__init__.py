"""What every long-running program shares: signals, systemd, locks, the status socket."""
