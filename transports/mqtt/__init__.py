"""`mqtt://`, `mqtts://`, `ws://` and `wss://`: topics of an MQTT broker."""
