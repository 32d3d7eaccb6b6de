"""Messages of the FAST protocol, and their YAML."""
