"""ccagent: collectors for the nodes of compute clusters."""

__version__ = "1.0.0"

PRODUCER = "ccagent"
"""Name of this producer in the `meta` object of every envelope."""
