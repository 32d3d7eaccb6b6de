"""Measurement of the memory bandwidth that is left (mmbwmon)."""
