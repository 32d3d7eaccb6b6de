"""Energy, CO2 and cost of ended jobs, and their sums."""
