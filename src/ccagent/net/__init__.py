"""Clients of servers: HTTP, TLS, URLs, and the texts of their errors."""
