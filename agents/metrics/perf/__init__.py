"""Readers of hardware performance counters."""
