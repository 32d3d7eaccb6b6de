"""Readers of node metrics, one file per subject."""
