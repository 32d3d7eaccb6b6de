"""Transports: each delivers messages to one kind of receiver."""
