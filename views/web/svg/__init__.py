"""Plots as SVG, made by the server: lines, meters, sparklines, grids of colours."""
