"""Stores: programs that receive and keep what agents send."""
