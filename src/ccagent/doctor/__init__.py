"""`ccagent doctor`: checks of this machine for the configured agents and sinks."""
