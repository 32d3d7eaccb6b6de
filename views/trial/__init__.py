"""A trial of everything on one machine: daemon, exporter, store and pages."""
