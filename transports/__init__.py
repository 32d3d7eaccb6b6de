"""Transports. Each delivers messages to one kind of receiver."""
