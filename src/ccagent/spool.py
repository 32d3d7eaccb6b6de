"""Messages of one sink in SQLite: on disk, or in memory with the same code.

A message is stored before it is sent and deleted after the sink has acknowledged it. What a sink
refuses for good is set aside with the reason. All methods may raise sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMORY = ":memory:"
"""The path of a spool that is kept in memory."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, stored REAL NOT NULL, size INTEGER NOT NULL,
    message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER PRIMARY KEY, stored REAL NOT NULL, reason TEXT NOT NULL,
    message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS totals (size INTEGER NOT NULL, dropped INTEGER NOT NULL);
INSERT INTO totals SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM totals);
CREATE TRIGGER IF NOT EXISTS stored AFTER INSERT ON waiting BEGIN
    UPDATE totals SET size = size + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON waiting BEGIN
    UPDATE totals SET size = size - OLD.size; END;
"""

_BUSY_SECONDS = 2.0
_REFUSED_KEPT = 1000
_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Waiting(NamedTuple):
    """One stored message and its number in the spool."""

    number: int
    message: Message


class Refused(NamedTuple):
    """A message that the sink has refused for good, when it was stored, and why."""

    message: Message
    stored: float
    reason: str


class Summary(NamedTuple):
    """What a spool holds: messages and bytes, age of the oldest in seconds, dropped so far."""

    messages: int
    size: int
    age: float
    refused: int
    dropped: int


class Spool:
    """The messages that one sink is yet to take, oldest first.

    max_bytes, max_age (seconds): beyond these the oldest are dropped, and counted.
    durability: `process` survives the end of the process however it comes; `power` also that of
    the machine, for the price of waiting for the disk at each message.
    """

    def __init__(
        self,
        path: str = MEMORY,
        *,
        max_bytes: int,
        max_age: float,
        durability: str = "process",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._now = now
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            self._database.executescript(_SCHEMA)
        except sqlite3.Error:
            self._database.close()
            raise

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages; give how many older ones were dropped to make room."""
        now = self._now()
        rows = [(now, len(message.body), _encoder.encode(message)) for message in messages]
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT INTO waiting (stored, size, message) VALUES (?, ?, ?)", rows
            )
            return self._trim(now)

    def oldest(self, count: int, size: int) -> list[Waiting]:
        """Give the oldest messages: at most `count`, of about `size` bytes, but at least one."""
        found: list[Waiting] = []
        with self._lock:
            rows = self._database.execute(
                "SELECT number, size, message FROM waiting ORDER BY number LIMIT ?", (count,)
            )
            for number, length, message in rows:
                size -= length
                if found and size < 0:
                    break
                found.append(Waiting(number, _decoder.decode(message)))
        return found

    def remove(self, numbers: Sequence[int]) -> None:
        """Delete messages that the sink has acknowledged."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "DELETE FROM waiting WHERE number = ?", [(number,) for number in numbers]
            )

    def set_aside(self, number: int, reason: str) -> None:
        """Move a message that will never be taken to the refused ones, of which some are kept."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(
                "INSERT OR REPLACE INTO refused "
                "SELECT number, stored, ?, message FROM waiting WHERE number = ?",
                (reason, number),
            )
            self._database.execute("DELETE FROM waiting WHERE number = ?", (number,))
            self._database.execute(
                "DELETE FROM refused WHERE number NOT IN "
                "(SELECT number FROM refused ORDER BY number DESC LIMIT ?)",
                (_REFUSED_KEPT,),
            )

    def refused(self) -> list[Refused]:
        """Give the messages that were set aside, oldest first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT message, stored, reason FROM refused ORDER BY number"
            ).fetchall()
        return [
            Refused(_decoder.decode(message), stored, reason) for message, stored, reason in rows
        ]

    def summary(self) -> Summary:
        """Count what is here."""
        with self._lock:
            (row,) = self._database.execute(
                "SELECT (SELECT COUNT(*) FROM waiting), size, "
                "(SELECT stored FROM waiting ORDER BY number LIMIT 1), "
                "(SELECT COUNT(*) FROM refused), dropped FROM totals"
            )
        messages, size, oldest, refused, dropped = row
        age = max(0.0, self._now() - oldest) if oldest is not None else 0.0
        return Summary(messages, size, age, refused, dropped)

    def is_empty(self) -> bool:
        """Tell whether nothing waits."""
        with self._lock:
            return self._database.execute("SELECT 1 FROM waiting LIMIT 1").fetchone() is None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def _trim(self, now: float) -> int:
        """Drop what is too old, and the oldest of what is too much."""
        # The oldest have the smallest numbers; so the search ends at the first that is young.
        old = 0
        oldest = self._database.execute("SELECT MIN(number), stored FROM waiting").fetchone()
        if oldest[0] is not None and oldest[1] < now - self._max_age:
            old = self._database.execute(
                "DELETE FROM waiting WHERE stored < ?", (now - self._max_age,)
            ).rowcount
        (size,) = self._database.execute("SELECT size FROM totals").fetchone()
        many = 0
        if size > self._max_bytes:
            many = self._database.execute(
                "DELETE FROM waiting WHERE number <= (SELECT MAX(number) FROM (SELECT number, "
                "SUM(size) OVER (ORDER BY number DESC) AS kept FROM waiting) WHERE kept > ?) "
                "AND number < (SELECT MAX(number) FROM waiting)",
                (self._max_bytes,),
            ).rowcount
        if old + many:
            self._database.execute("UPDATE totals SET dropped = dropped + ?", (old + many,))
        return old + many
