"""`ccagent doctor`: what this machine has and lacks for the configured agents and sinks."""
