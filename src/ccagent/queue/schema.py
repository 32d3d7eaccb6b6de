"""The tables of a queue's database."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (number INTEGER PRIMARY KEY, kind TEXT, entry BLOB);
CREATE TABLE IF NOT EXISTS dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, rejected REAL, reason TEXT, entry BLOB);
CREATE TABLE IF NOT EXISTS state (
    next INTEGER, moment BLOB, messages INTEGER, bytes INTEGER, letters INTEGER,
    letter_bytes INTEGER, dropped INTEGER);
INSERT INTO state SELECT 1, NULL, 0, 0, 0, 0, 0 WHERE NOT EXISTS (SELECT * FROM state);
CREATE TRIGGER IF NOT EXISTS letter_stored AFTER INSERT ON dead_letters BEGIN
    UPDATE state SET letters = letters + 1,
        letter_bytes = letter_bytes + COALESCE(length(NEW.entry), 0); END;
CREATE TRIGGER IF NOT EXISTS letter_deleted AFTER DELETE ON dead_letters BEGIN
    UPDATE state SET letters = letters - 1,
        letter_bytes = letter_bytes - COALESCE(length(OLD.entry), 0); END;
"""
# The methods that store and delete messages count them: triggers are slower.


def prepare(database: sqlite3.Connection, now: float) -> None:
    """Create missing tables. A complete file is not written.

    now: seconds since 1970. Raise sqlite3.Error if SQLite fails.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return
    # One transaction: a file is either complete or empty.
    script = f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT"
    database.executescript(script)
    old = "SELECT 1 FROM sqlite_master WHERE name = 'waiting' AND type = 'table'"
    if database.execute(old).fetchone():
        from ccagent.queue.old_schema import migrate

        with Transaction(database):
            migrate(database, now)


class Transaction:
    """Run a transaction: BEGIN IMMEDIATE, then COMMIT, or ROLLBACK after an exception."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._database.rollback()
            return
        try:
            self._database.commit()
        except BaseException:
            # Without a rollback no later transaction can start.
            self._database.rollback()
            raise
