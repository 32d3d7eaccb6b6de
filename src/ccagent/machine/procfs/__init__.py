"""Parsers of files below /proc."""
