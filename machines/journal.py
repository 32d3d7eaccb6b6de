"""Tasks on disk: each is recorded before its work, and its result before it is sent."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.fast.session.kept_state import AnswerOnItsWay
from ccagent.errors import CcagentError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILE = "tasks.sqlite"
MOST_TASKS = 1000
"""Number of remembered tasks: a repeated one gets the stored result."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    number INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, digest TEXT NOT NULL,
    payload BLOB NOT NULL, accepted REAL NOT NULL, result BLOB, is_queued INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS sending (number INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""


class JournalError(CcagentError):
    """The journal can't be written: no task may be accepted."""


class RecordedTask(NamedTuple):
    """A task of the journal. digest: of its payload. result: None as long as it runs."""

    key: str
    digest: str
    payload: bytes
    result: bytes | None


class _State:
    """The part of the state that the session changes."""

    def __init__(self) -> None:
        self.sending: AnswerOnItsWay | None = None


class TaskJournal:
    """The journal of one node. Several threads call its methods."""

    def __init__(self, directory: str) -> None:
        """Open the journal; a damaged one is renamed and a new one begun."""
        self.state = _State()
        self._path = os.path.join(directory, _FILE)
        self._lock = threading.Lock()
        try:
            self._database = self._open()
        except sqlite3.DatabaseError as error:
            logger.error("migfra: %s: damaged (%s); set aside as .damaged", self._path, error)
            os.replace(self._path, f"{self._path}.damaged")
            for name in (f"{self._path}-wal", f"{self._path}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            self._database = self._open()
        rows = self._database.execute("SELECT content FROM sending").fetchall()
        with contextlib.suppress(msgspec.MsgspecError):
            for (content,) in rows:
                self.state.sending = msgspec.msgpack.decode(content, type=AnswerOnItsWay)

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_SCHEMA)
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database

    def find(self, key: str) -> RecordedTask | None:
        """Return a task by its key; None if it is unknown."""
        found = self._query("SELECT key, digest, payload, result FROM tasks WHERE key = ?", (key,))
        return found[0] if found else None

    def unfinished(self) -> list[RecordedTask]:
        """Return the tasks without a result, oldest first: another process has begun them."""
        return self._query(
            "SELECT key, digest, payload, result FROM tasks WHERE result IS NULL ORDER BY number"
        )

    def unqueued(self) -> list[RecordedTask]:
        """Return the tasks whose result may not be in the queue."""
        return self._query(
            "SELECT key, digest, payload, result FROM tasks"
            " WHERE result IS NOT NULL AND NOT is_queued ORDER BY number"
        )

    def accept(self, key: str, digest: str, payload: bytes) -> None:
        """Record a task before its work; forget the oldest. Raise JournalError."""
        self._change(
            "INSERT INTO tasks (key, digest, payload, accepted) VALUES (?, ?, ?, ?)",
            (key, digest, payload, time.time()),
        )
        self._change(
            "DELETE FROM tasks WHERE result IS NOT NULL AND"
            " number <= (SELECT max(number) FROM tasks) - ?",
            (MOST_TASKS,),
        )

    def finish(self, key: str, result: bytes) -> None:
        """Record the result of a task. Raise JournalError."""
        self._change("UPDATE tasks SET result = ? WHERE key = ?", (result, key))

    def note_queued(self, key: str) -> None:
        """Record that the queue has the result of a task. Raise JournalError."""
        self._change("UPDATE tasks SET is_queued = 1 WHERE key = ?", (key,))

    def save(self) -> None:
        """Write the state of the session. If that fails, log an error."""
        sending = self.state.sending
        try:
            if sending is None:
                self._change("DELETE FROM sending", ())
            else:
                content = msgspec.msgpack.encode(sending)
                self._change("INSERT OR REPLACE INTO sending VALUES (1, ?)", (content,))
        except JournalError as error:
            logger.error("migfra: %s", error, key="migfra journal")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _query(self, text: str, values: Iterable[object] = ()) -> list[RecordedTask]:
        with self._lock:
            try:
                rows = self._database.execute(text, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise JournalError(f"{self._path}: {error}") from error
        return [RecordedTask(*row) for row in rows]

    def _change(self, text: str, values: Iterable[object]) -> None:
        with self._lock:
            try:
                self._database.execute(text, tuple(values))
            except sqlite3.Error as error:
                raise JournalError(f"{self._path}: {error}") from error
