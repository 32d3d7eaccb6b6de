"""Network servers: parsing of requests, limits of connections."""
