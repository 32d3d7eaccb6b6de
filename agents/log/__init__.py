"""The agent `log`: ccagent's own warnings and errors as log messages."""
