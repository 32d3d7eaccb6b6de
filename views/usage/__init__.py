"""The command `ccagent usage`."""
