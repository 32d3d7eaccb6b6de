"""Tables of records for terminals."""
