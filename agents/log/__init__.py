"""The agent `log`: what ccagent itself warns of, as log messages."""
