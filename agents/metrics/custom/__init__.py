"""Metrics of the site: commands, files, expressions."""
