"""KPIs of the node and of its applications."""
