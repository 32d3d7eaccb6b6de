"""Transports: each carries messages to one kind of receiver."""
