"""Records and their encodings: envelopes, line protocol, messages."""
