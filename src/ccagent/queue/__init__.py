"""The queue of a sink: it keeps messages until the sink has acknowledged them."""
