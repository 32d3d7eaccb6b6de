"""The messages of the FAST protocol, and their YAML."""
