"""Clients and servers of networks: HTTP, TLS, URLs, limits of connections, texts of errors."""
