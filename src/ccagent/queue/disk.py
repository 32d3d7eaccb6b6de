"""The file of a queue: opening, pauses after failures, replacement of a damaged file."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.queue.files import (
    WatchedFile,
    explain,
    is_damage,
    list_unrecovered,
    lock_for_repair,
    open_disk,
    recover_all,
    set_aside,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.database import QueueDatabase

_REPLACED_AT_MOST_EVERY = 30.0
"""Minimum seconds between two replacements of a damaged file."""

DATABASE_ERRORS = (sqlite3.Error, ValueError, TypeError, OverflowError)
"""Errors of SQLite, and of Python code that reads damaged content."""


class QueueDisk:
    """The database of a queue on disk, or none while the disk can't be used.

    No method raises an exception for a failure of the disk. The failure is logged, and the disk is
    tried again later.
    """

    def __init__(self, path: str, settings: OutboxSettings, monotonic: Callable[[], float]) -> None:
        self.path = path
        self.database: QueueDatabase | None = None
        self.retry_after = 10.0
        """Seconds until a failed disk is tried again."""
        self.retry_at = 0.0
        self.error = ""
        """The reason why the disk can't be used now; empty if it can be used."""
        self.unremoved: set[int] = set()
        """Numbers of acknowledged messages that could not be deleted yet."""
        self.is_recovering = False
        """True if a damaged file may contain messages that are not recovered yet."""
        self._settings = settings
        self._monotonic = monotonic
        self._acknowledged: set[int] = set()
        self._file: WatchedFile | None = None
        self._replaced_at = -_REPLACED_AT_MOST_EVERY

    def open(self) -> None:
        """Open the file. A damaged one is replaced, and its messages are recovered."""
        with contextlib.suppress(OSError):
            self._watch()
        try:
            self.database = open_disk(self.path, self._settings)
            self._watch()
        except DATABASE_ERRORS as error:
            if is_damage(error, self.path):
                self._replace(error, set())
            else:
                self.postpone(explain(error))
        except (OSError, NotPermittedError) as error:
            self.postpone(explain(error))
        else:
            self.is_recovering = bool(list_unrecovered(self.path))
            self.note_working()

    def close(self) -> None:
        """Close the file."""
        if self.database is not None:
            with contextlib.suppress(sqlite3.Error):
                self.database.close()
            self.database = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self.unremoved.clear()

    def is_usable(self) -> bool:
        """Return whether the file is open and no pause is running."""
        return self.database is not None and self._monotonic() >= self.retry_at

    def is_due(self) -> bool:
        """Return whether to open the file now."""
        return self.database is None and self._monotonic() >= self.retry_at

    def is_current(self) -> bool:
        """Return whether the path still leads to the open file."""
        return self._file is None or self._file.is_current()

    def is_removed(self) -> bool:
        """Return whether the open file was unlinked."""
        return self._file is not None and self._file.is_removed()

    def ask(self, question: Callable[[QueueDatabase], int]) -> int:
        """Return a number from the database; 0 if no database is open or the query fails."""
        if self.database is None:
            return 0
        try:
            return question(self.database)
        except DATABASE_ERRORS:
            return 0

    def fail(self, error: Exception) -> None:
        """Pause after a failure; replace a damaged file at once."""
        if self.database is not None and is_damage(error, self.path):
            self.database.close()
            self.database = None
            self._replace(error, {*self.unremoved})
        else:
            self.postpone(explain(error))

    def postpone(self, reason: str) -> None:
        """Pause, and log a new reason."""
        self.retry_at = self._monotonic() + self.retry_after
        if reason != self.error:
            logger.error("outbox %s: %s; messages are kept in memory", self.path, reason)
        self.error = reason

    def note_working(self) -> None:
        """Note that the disk works."""
        if self.error:
            logger.info("outbox %s: works again", self.path)
        self.error = ""
        self.retry_at = 0.0

    def recover(self) -> None:
        """Move the messages of damaged files that this or another process has renamed."""
        if self.database is None:
            return
        try:
            done = recover_all(self.path, self.database, self._acknowledged)
        except (*DATABASE_ERRORS, OSError, NotPermittedError) as error:
            names = ", ".join(list_unrecovered(self.path))
            self.postpone(f"{explain(error)}; messages in {names} are not recovered yet")
            return
        self.is_recovering = False
        self._acknowledged = set()
        for aside, count in done:
            logger.error(
                "outbox %s: %d messages are recovered from the damaged file, which is now %s",
                self.path,
                count,
                aside,
            )

    def _replace(self, error: Exception, acknowledged: set[int]) -> None:
        """Rename a damaged file and create a new one; `recover` moves the messages."""
        if self._monotonic() < self._replaced_at + _REPLACED_AT_MOST_EVERY:
            self.close()
            self.postpone(explain(error))
            return
        self._replaced_at = self._monotonic()
        logger.error("outbox %s: %s; its undamaged messages move to a new file", self.path, error)
        try:
            with lock_for_repair(self.path):
                if self.is_current():  # if not, another process has replaced the file
                    set_aside(self.path)
                self.close()
                self.database = open_disk(self.path, self._settings)
                self._watch()
        except (*DATABASE_ERRORS, OSError, NotPermittedError) as reason:
            self.postpone(explain(reason))
            return
        self._acknowledged = acknowledged
        self.is_recovering = True
        self.note_working()

    def _watch(self) -> None:
        """Remember which file is open. Raise OSError if the path can't be opened."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file = WatchedFile(self.path)
