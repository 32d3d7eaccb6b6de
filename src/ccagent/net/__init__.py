"""Clients and servers of networks: HTTP, MQTT, TLS, URLs, limits of connections, error texts."""
