"""Generation of SVG: lines, meters, sparklines, heat maps."""
