"""Collectors under the metric names of node_exporter."""
