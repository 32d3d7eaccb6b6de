"""The agent `fast`: the node's side of the FAST protocol, over MQTT."""
