"""The session with the broker, and what survives it."""
