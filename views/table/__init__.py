"""Records as tables for people, instead of JSON and lines."""
