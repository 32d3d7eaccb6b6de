"""The messages of one sink in SQLite, on disk or in memory with the same code.

A message is stored before it is sent, and deleted after the sink has acknowledged it. A message
that the sink has rejected becomes a dead letter. All methods may raise sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError, UnparsableError
from ccagent.queue.entry import QueueEntry, decode_entry, encode_entry
from ccagent.queue.limits import (
    Totals,
    check_number,
    delete_messages,
    drop_expired,
    drop_overflow,
    make_marks,
    recount,
)
from ccagent.queue.queue_clock import (
    Moment,
    advance,
    decode_moment,
    encode_moment,
    read_boot_id,
    read_uptime,
)
from ccagent.queue.rows import DeadLetter, QueuedMessage, build_dead_letter
from ccagent.queue.salvage import PAGE_SIZE
from ccagent.queue.schema import Transaction, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ccagent.records.message import Message

MEMORY = ":memory:"
"""SQLite's path of a database in memory."""

# Numbers are never reused: an acknowledgement could otherwise delete a later message.
_NEXT = "SELECT MAX(next, (SELECT COALESCE(MAX(number), 0) + 1 FROM messages)) FROM state"
_STORED = "UPDATE state SET next = ?, moment = ?, messages = messages + ?, bytes = bytes + ?"
_FIRST_IN_MEMORY = 1 << 40
_BUSY_SECONDS = 2.0
_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
_EXPIRY_STEPS = 1000.0
"""The number of checks of the age during one maximum age."""
_AT_ONCE = 500


class QueueDatabase:
    """The queued messages of one sink, oldest first, and its dead letters.

    max_bytes, max_age (seconds): above these limits the oldest dead letters, then the oldest
    messages are deleted and counted. durability: with `process` a stored message survives the end
    of the process. With `power` it also survives a power failure, but each message waits for the
    disk.
    """

    def __init__(
        self,
        path: str = MEMORY,
        *,
        max_bytes: int,
        max_age: float,
        durability: str = "process",
        wall_clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = read_uptime,
        boot_id: Callable[[], bytes] = read_boot_id,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._wall_clock = wall_clock
        self._uptime = uptime
        self._boot = boot_id()
        self._database = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        # A row with damaged text must stay readable.
        self._database.text_factory = _decode_text
        try:
            self._database.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            # Deleted messages are overwritten: the recovery of a damaged file must not find them.
            overwrite = "OFF" if path == MEMORY else "ON"
            self._database.execute(f"PRAGMA secure_delete = {overwrite}")
            prepare(self._database, self._wall_clock())
            if path == MEMORY:
                # Numbers of messages in memory and on disk must differ.
                self._database.execute("UPDATE state SET next = ?", (_FIRST_IN_MEMORY,))
            self._now = self._read_clock()
            self._expiry = self._now.clock
            # Messages hidden by a damaged count would never be sent.
            recount(self._database)
        except BaseException:
            self._database.close()
            raise
        self.is_open = True

    def put(self, messages: Sequence[Message]) -> int:
        """Store messages. Return the number of older messages deleted to make room.

        Raise EncodingError for a message that can't be stored.
        """
        now, stored = self._advance(), self._wall_clock()
        try:
            rows = [
                (message.topic, encode_entry(QueueEntry(stored, now.clock, message)))
                for message in messages
            ]
        except (ValueError, TypeError, OverflowError) as error:
            raise EncodingError(f"a message can't be stored: {error}") from error
        return self._insert(rows, now)

    def restore(self, entries: Iterable[QueueEntry], age_of: Callable[[QueueEntry], float]) -> int:
        """Store entries of another database. Their age is computed from that database's clock.

        Return the number of messages deleted to make room.
        """
        now = self._advance()
        rows = [
            (
                each.message.topic,
                encode_entry(QueueEntry(each.stored, now.clock - age_of(each), each.message)),
            )
            for each in entries
        ]
        return self._insert(rows, now)

    def read_oldest(
        self,
        count: int,
        size: int,
        *,
        only_number: int | None = None,
        without_kinds: Collection[str] = (),
        without_numbers: Collection[int] = (),
    ) -> tuple[list[QueuedMessage], list[tuple[int, str]]]:
        """Return the oldest messages, and the undecodable messages between them.

        At most `count` messages of about `size` bytes are returned, but at least one; with
        `only_number` only that message. An undecodable message is a pair of number and reason.
        """
        found: list[QueuedMessage] = []
        damaged: list[tuple[int, str]] = []
        condition = ""
        if only_number is not None:
            condition, without_kinds, without_numbers = "WHERE number = ? ", (), (only_number,)
        elif without_kinds or without_numbers:
            kinds, numbers = make_marks([*without_kinds]), make_marks([*without_numbers])
            # A damaged kind is NULL or a number. Its message must be returned, too.
            condition = f"WHERE COALESCE(kind, '') NOT IN ({kinds}) AND number NOT IN ({numbers}) "
        rows = self._database.execute(
            f"SELECT number, entry FROM messages {condition}ORDER BY number LIMIT ?",  # noqa: S608
            (*without_kinds, *without_numbers, count),
        )
        for number, stored in rows:
            try:
                entry = decode_entry(stored)
            except UnparsableError as error:
                damaged.append((number, str(error)))
                continue
            size -= len(stored)
            if found and size < 0:
                break
            found.append(QueuedMessage(number, entry))
        return found, damaged

    def check_structure(self) -> None:
        """Raise sqlite3.DatabaseError if two rows share pages of the file.

        Deleting one of them would destroy the other.
        """
        (result,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"malformed: {' '.join(str(result).split())}")

    def remove(self, numbers: Collection[int]) -> None:
        """Delete acknowledged messages.

        Raise sqlite3.DatabaseError if rows remain after the deletion. This happens in a file whose
        order is damaged.
        """
        with self._transaction():
            deleted = 0
            for some in _split_numbers([*numbers]):
                deleted += self._delete(f"number IN ({make_marks(some)})", some)
            # Another process may have dropped some of them to make room.
            if deleted < len(numbers) and self._has_any(numbers):
                raise sqlite3.DatabaseError("malformed: deleted messages are still there")

    def reject(self, number: int, reason: str) -> None:
        """Turn a message into a dead letter."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO dead_letters (rejected, reason, entry) "
                "SELECT ?, ?, entry FROM messages WHERE number = ?",
                (self._wall_clock(), reason, number),
            )
            self._delete("number = ?", [number])

    def add_dead_letter(self, message: Message, reason: str) -> None:
        """Store a dead letter that is not a message of this database, such as a part of one."""
        stored = self._wall_clock()
        entry = encode_entry(QueueEntry(stored, self._advance().clock, message))
        with self._transaction():
            self._database.execute(
                "INSERT INTO dead_letters (rejected, reason, entry) VALUES (?, ?, ?)",
                (stored, reason, entry),
            )

    def read_dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        rows = self._database.execute(
            "SELECT number, rejected, reason, entry FROM dead_letters ORDER BY number"
        )
        return [build_dead_letter(*row) for row in rows]

    def retry(self, numbers: Collection[int]) -> None:
        """Queue dead letters again, as the newest messages."""
        now = self._advance()
        with self._transaction():
            for number in numbers:
                row = self._database.execute(
                    "SELECT entry FROM dead_letters WHERE number = ?", (number,)
                ).fetchone()
                entry = decode_entry(row[0])
                # Their age starts at 0; otherwise they could expire at once.
                renewed = encode_entry(QueueEntry(entry.stored, now.clock, entry.message))
                self._store([(entry.message.topic, renewed)], now)
                self._database.execute("DELETE FROM dead_letters WHERE number = ?", (number,))

    def drop(self, numbers: Collection[int]) -> None:
        """Delete dead letters."""
        with self._transaction():
            self._database.executemany(
                "DELETE FROM dead_letters WHERE number = ?", [(number,) for number in numbers]
            )

    def clear(self) -> int:
        """Delete all queued messages. Return their number."""
        with self._transaction():
            return self._delete("TRUE", [])

    def count(self) -> int:
        """Return the number of queued messages."""
        (row,) = self._database.execute("SELECT messages FROM state")
        if not isinstance(row[0], int) or row[0] < 0:
            return recount(self._database).messages
        return row[0]

    def has_messages(self) -> bool:
        """Return whether a message is queued. Does not rely on the stored count."""
        return self._database.execute("SELECT 1 FROM messages LIMIT 1").fetchone() is not None

    def compute_age(self, entry: QueueEntry) -> float:
        """Return the minimum time in seconds for which an entry of this database was queued."""
        return max(0.0, self._advance().clock - entry.clock)

    def size(self) -> int:
        """Return the bytes of the queued messages."""
        (row,) = self._database.execute("SELECT bytes FROM state")
        return check_number(row[0])

    def summarise(self) -> Totals:
        """Count all rows and return the totals, with the age of the oldest message."""
        age = 0.0
        for entry in self.read_entries():
            age = self.compute_age(entry)
            break
        return recount(self._database)._replace(age=age)

    def read_entries(self, without: Collection[int] = ()) -> Iterable[QueueEntry]:
        """Return all decodable entries, oldest first, except for some numbers."""
        rows = self._database.execute("SELECT number, entry FROM messages ORDER BY number")
        for number, stored in rows:
            if number in without:
                continue
            try:
                yield decode_entry(stored)
            except UnparsableError:
                continue

    def close(self) -> None:
        """Close the database."""
        self._database.close()
        self.is_open = False

    def _insert(self, rows: Sequence[tuple[str, bytes]], now: Moment) -> int:
        """Insert rows of kind and entry. Return the number of messages deleted to make room."""
        with self._transaction():
            self._store(rows, now)
            dropped = self._drop_expired(now.clock) + drop_overflow(self._database, self._max_bytes)
            if dropped:
                self._database.execute("UPDATE state SET dropped = dropped + ?", (dropped,))
        self._now = now
        return dropped

    def _store(self, rows: Sequence[tuple[str, bytes]], now: Moment) -> None:
        """Insert rows of kind and entry, and count them."""
        ((following,),) = self._database.execute(_NEXT)
        self._database.executemany(
            "INSERT INTO messages VALUES (?, ?, ?)",
            [(number, *row) for number, row in enumerate(rows, following)],
        )
        size = sum(len(entry) for _, entry in rows)
        self._database.execute(
            _STORED, (following + len(rows), encode_moment(now), len(rows), size)
        )

    def _transaction(self) -> Transaction:
        return Transaction(self._database)

    def _has_any(self, numbers: Collection[int]) -> bool:
        """Return whether any of these messages is among the oldest ones."""
        rows = self._database.execute(
            "SELECT number FROM messages ORDER BY number LIMIT ?", (len(numbers) + 1,)
        )
        return not {number for (number,) in rows}.isdisjoint(numbers)

    def _read_clock(self) -> Moment:
        """Return the current reading of the stored clock."""
        (row,) = self._database.execute("SELECT moment FROM state")
        last = decode_moment(row[0])
        if last is None:
            # The clock is damaged or new: start no earlier than the newest message.
            rows = self._database.execute("SELECT entry FROM messages ORDER BY number DESC LIMIT 1")
            for (stored,) in rows:
                try:
                    return Moment(decode_entry(stored).clock, self._boot, self._uptime())
                except UnparsableError:
                    break
            return Moment(0.0, self._boot, self._uptime())
        return advance(last, self._boot, self._uptime())

    def _advance(self) -> Moment:
        return advance(self._now, self._boot, self._uptime())

    def _drop_expired(self, clock: float) -> int:
        """Delete expired messages and dead letters. Return their number."""
        if clock < self._expiry:
            return 0
        self._expiry = clock + self._max_age / _EXPIRY_STEPS
        return drop_expired(self._database, clock - self._max_age)

    def _delete(self, condition: str, values: Sequence[object]) -> int:
        return delete_messages(self._database, condition, values)


def _split_numbers(numbers: list[int]) -> Iterable[list[int]]:
    """Yield numbers in lists that are short enough for one statement."""
    return (numbers[begin : begin + _AT_ONCE] for begin in range(0, len(numbers), _AT_ONCE))


def _decode_text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
