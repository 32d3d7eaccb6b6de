"""Migrations of the database: SQL files, applied in the order of their numbers."""
