"""The limits of a queue's database: counts, and deletion of expired and excess messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.queue.entry import decode_entry

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

_RECOUNT = """
UPDATE state SET messages = (SELECT COUNT(*) FROM messages),
    bytes = (SELECT COALESCE(SUM(length(entry)), 0) FROM messages),
    letters = (SELECT COUNT(*) FROM dead_letters),
    letter_bytes = (SELECT COALESCE(SUM(length(entry)), 0) FROM dead_letters)
"""
_TOTALS = "SELECT messages, bytes, letters, letter_bytes, dropped FROM state"
_OVERFLOW = (
    "SELECT COALESCE(MAX(number), 0) FROM (SELECT number, "
    "SUM(length(entry)) OVER (ORDER BY number DESC) AS kept FROM {}) WHERE kept > ?"
)
_EXPIRED_AT_ONCE = 100


class Totals(NamedTuple):
    """Numbers and bytes of messages and dead letters in a database.

    dropped: number of messages and dead letters deleted because of the limits since the file was
    created. age: minimum time in seconds for which the oldest message was queued; 0 if not
    computed.
    """

    messages: int
    size: int
    dead_letters: int
    dead_letter_size: int
    dropped: int
    age: float = 0.0


def recount(database: sqlite3.Connection) -> Totals:
    """Count messages and dead letters, because the stored totals may be damaged."""
    database.execute(_RECOUNT)
    return read_totals(database)


def read_totals(database: sqlite3.Connection) -> Totals:
    """Return the stored totals."""
    (row,) = database.execute(_TOTALS)
    return Totals(*map(check_number, row))


def check_number(value: object) -> int:
    """Return a number from a column that may be damaged; 0 for anything but a number."""
    return max(0, value) if isinstance(value, int) else 0


def make_marks(values: Sequence[object]) -> str:
    """Return the parameter marks of a statement for some values."""
    return ", ".join("?" * len(values))


def delete_messages(database: sqlite3.Connection, condition: str, values: Sequence[object]) -> int:
    """Delete messages, and subtract them from the totals. Return their number."""
    where = f"FROM messages WHERE {condition}"
    counted = f"SELECT COUNT(*), COALESCE(SUM(length(entry)), 0) {where}"
    count, size = database.execute(counted, values).fetchone()
    deleted = database.execute(f"DELETE {where}", values).rowcount
    database.execute("UPDATE state SET messages = messages - ?, bytes = bytes - ?", (count, size))
    return deleted


def drop_expired(database: sqlite3.Connection, oldest: float) -> int:
    """Delete dead letters and messages older than a reading of the queue's clock.

    Return their number.
    """
    dropped = 0
    while expired := _find_expired(database, "dead_letters", oldest):
        database.execute(
            f"DELETE FROM dead_letters WHERE number IN ({make_marks(expired)})",  # noqa: S608
            expired,
        )
        dropped += len(expired)
    while expired := _find_expired(database, "messages", oldest):
        dropped += delete_messages(database, f"number IN ({make_marks(expired)})", expired)
    return dropped


def drop_overflow(database: sqlite3.Connection, max_bytes: int) -> int:
    """Delete the oldest dead letters, then messages, above a size. Return their number."""
    totals = read_totals(database)
    if totals.size + totals.dead_letter_size <= max_bytes:
        return 0
    totals = recount(database)
    dropped = 0
    if totals.size + totals.dead_letter_size > max_bytes:
        room = max(0, max_bytes - totals.size)
        (last,) = database.execute(_OVERFLOW.format("dead_letters"), (room,)).fetchone()
        dropped += database.execute("DELETE FROM dead_letters WHERE number <= ?", (last,)).rowcount
    if totals.size > max_bytes:
        overflow = database.execute(_OVERFLOW.format("messages"), (max_bytes,))
        # The newest message stays, whatever its size.
        dropped += delete_messages(
            database,
            "number <= ? AND number < (SELECT MAX(number) FROM messages)",
            overflow.fetchone(),
        )
    return dropped


def _find_expired(database: sqlite3.Connection, table: str, oldest: float) -> list[int]:
    """Return the numbers of some expired rows, oldest first. Undecodable rows are left out."""
    rows = database.execute(f"SELECT number, entry FROM {table} ORDER BY number")  # noqa: S608
    found: list[int] = []
    for number, stored in rows:
        try:
            if decode_entry(stored).clock >= oldest:
                break
        except UnparsableError:
            continue
        found.append(number)
        if len(found) >= _EXPIRED_AT_ONCE:
            break
    return found
