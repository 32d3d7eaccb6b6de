"""Agents: each samples one part of what a machine knows."""
