"""FAST's migration framework: virtual machines that a scheduler starts, stops and moves."""
