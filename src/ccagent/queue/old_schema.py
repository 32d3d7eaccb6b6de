"""Migration of the tables of version 0.1."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from ccagent.queue.entry import QueueEntry, encode_entry
from ccagent.records.message import Message

if TYPE_CHECKING:
    import sqlite3

_INSERT = {
    "waiting": "INSERT INTO messages (kind, entry) VALUES (?, ?)",
    "refused": "INSERT INTO dead_letters (reason, entry, rejected) VALUES (?, ?, ?)",
}
_decoder = msgspec.msgpack.Decoder(Message)


def migrate(database: sqlite3.Connection, now: float) -> None:
    """Move the rows of the tables of version 0.1 to the current tables, and drop the old tables.

    now: seconds since 1970. A message that can't be decoded becomes a dead letter.
    """
    for stored, content in database.execute("SELECT stored, message FROM waiting ORDER BY number"):
        try:
            message = _decoder.decode(content)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            database.execute(_INSERT["refused"], (f"damaged: {error}", content, now))
            continue
        entry = encode_entry(QueueEntry(_seconds(stored), 0.0, message))
        database.execute(_INSERT["waiting"], (message.topic, entry))
    rows = database.execute("SELECT stored, reason, message FROM refused ORDER BY number")
    for stored, reason, content in rows:
        entry = content
        with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError):
            entry = encode_entry(QueueEntry(_seconds(stored), 0.0, _decoder.decode(content)))
        database.execute(_INSERT["refused"], (reason, entry, now))
    database.execute(
        "UPDATE state SET messages = (SELECT COUNT(*) FROM messages), "
        "bytes = (SELECT COALESCE(SUM(length(entry)), 0) FROM messages)"
    )
    for table in ("waiting", "refused"):
        database.execute(f"DROP TABLE {table}")


def _seconds(stored: object) -> float:
    return float(stored) if isinstance(stored, (int, float)) else 0.0
