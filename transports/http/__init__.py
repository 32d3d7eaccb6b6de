"""`http://` and `https://`: POST requests to a server."""
