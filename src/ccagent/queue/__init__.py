"""The queue of a sink: messages stay in it until the sink has acknowledged them."""
