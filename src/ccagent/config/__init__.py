"""The configuration: files, settings types, defaults, checks."""
