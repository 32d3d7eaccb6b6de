"""Agents: each samples one part of a machine or cluster."""
