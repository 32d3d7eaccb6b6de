"""Tasks on disk: each is recorded before its work, and its result before it is sent."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.fast.kept_state import AnswerOnItsWay, KeptState
from ccagent.errors import CcagentError, NotPermittedError
from ccagent.log import logger
from ccagent.service.journal_file import JournalFile, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILE = "tasks.journal"
MOST_TASKS = 1000
"""Number of remembered tasks: a repeated one gets the stored result."""

_MOST_RECORDS = 4 * MOST_TASKS
"""Number of records after which the file is rewritten."""


class JournalError(CcagentError):
    """The journal can't be read or written: no task may be accepted."""


class RecordedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of the journal. digest: of its payload, which is kept until it has a result."""

    key: str
    digest: str
    payload: bytes = b""
    result: bytes | None = None


class JournalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file: the new state of a task, or of the answer that is being sent."""

    task: RecordedTask | None = None
    sending: AnswerOnItsWay | None = None


class TaskJournal:
    """The journal of one node. Several threads call its methods. Raise JournalError."""

    def __init__(self, directory: str) -> None:
        """Read the journal of an earlier process."""
        self.state = KeptState()
        self._path = os.path.join(directory, _FILE)
        self._file = JournalFile(self._path, JournalRecord)
        self._lock = threading.Lock()
        self._tasks: dict[str, RecordedTask] = {}
        try:
            for record in self._file.load():
                if record.task is not None:
                    self._tasks[record.task.key] = record.task
                else:
                    self.state.sending = record.sending
            self._file.rewrite(self._records())
        except (OSError, NotPermittedError) as error:
            raise JournalError(f"migfra.state-directory: {explain(error)}") from error

    def find(self, key: str) -> RecordedTask | None:
        """Return a task by its key; None if it is unknown."""
        return self._tasks.get(key)

    def unfinished(self) -> list[RecordedTask]:
        """Return the tasks without a result, oldest first: another process has begun them."""
        return [task for task in self._tasks.values() if task.result is None]

    def accept(self, key: str, digest: str, payload: bytes) -> None:
        """Record a task before its work; forget the oldest with a result."""
        with self._lock:
            if len(self._tasks) >= MOST_TASKS:
                done = (known for known, task in self._tasks.items() if task.result is not None)
                self._tasks.pop(next(done, ""), None)
            self._put(RecordedTask(key, digest, payload))

    def finish(self, key: str, result: bytes, queue: Callable[[], object]) -> None:
        """Queue the result of a task, then record it. The session can't send it before."""
        with self._lock:
            queue()
            if (task := self._tasks.get(key)) is not None:
                self._put(RecordedTask(key, task.digest, result=result))

    def save(self) -> None:
        """Write the state of the session. If that fails, log an error."""
        try:
            with self._lock:
                self._append(JournalRecord(sending=self.state.sending))
        except JournalError as error:
            logger.error("migfra: %s", error, key="migfra journal")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _put(self, task: RecordedTask) -> None:
        self._append(JournalRecord(task))
        self._tasks[task.key] = task

    def _append(self, record: JournalRecord) -> None:
        try:
            if self._file.is_due(_MOST_RECORDS):
                self._file.rewrite(self._records())
            self._file.append(record)
        except (OSError, NotPermittedError) as error:
            raise JournalError(f"migfra.state-directory: {explain(error)}") from error

    def _records(self) -> Iterator[JournalRecord]:
        for task in self._tasks.values():
            yield JournalRecord(task)
        if self.state.sending is not None:
            yield JournalRecord(sending=self.state.sending)
