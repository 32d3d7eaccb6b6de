"""Readers of node metrics, one file a subject."""
