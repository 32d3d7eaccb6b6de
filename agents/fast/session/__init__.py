"""The session with the broker, and its persistent state."""
