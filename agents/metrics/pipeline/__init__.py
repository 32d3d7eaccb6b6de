"""From readings to points: rates, downsampling, units, names."""
