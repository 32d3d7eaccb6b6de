"""Split of measured energy between the jobs of a node."""
