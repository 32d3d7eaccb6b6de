"""Collectors with the names of node_exporter."""
