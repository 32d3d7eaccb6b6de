"""Metrics that a site adds: commands, files, expressions."""
