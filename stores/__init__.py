"""Stores: programs that receive and keep the data of agents."""
