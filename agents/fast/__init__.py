"""The agent `fast`: the node side of the FAST protocol over MQTT."""
