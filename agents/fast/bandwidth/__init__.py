"""Measurement of the available memory bandwidth (mmbwmon)."""
