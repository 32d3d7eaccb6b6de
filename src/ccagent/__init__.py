"""ccagent: collectors for the nodes of compute clusters."""

__version__ = "1.0.0.dev0"
"""The build replaces this line by the version from git's tags, see packaging/version.py."""

RELEASE = __version__.partition(".dev")[0]
"""The version in records: receivers expect three numbers."""

PRODUCER = "ccagent"
"""Name of this producer in the `meta` object of every envelope."""
