"""Rows of a queue's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.queue.entry import decode_entry

if TYPE_CHECKING:
    from ccagent.queue.entry import QueueEntry
    from ccagent.records.message import Message


class QueuedMessage(NamedTuple):
    """One queued message: its number in the database, and the entry."""

    number: int
    entry: QueueEntry

    @property
    def message(self) -> Message:
        """The message in the entry."""
        return self.entry.message


class DeadLetter(NamedTuple):
    """A message that is no longer sent, and the reason.

    rejected: seconds since 1970. entry: None if it can't be decoded; size: its bytes.
    """

    number: int
    rejected: float
    reason: str
    entry: QueueEntry | None
    size: int


def build_dead_letter(number: int, rejected: object, reason: object, stored: object) -> DeadLetter:
    """Return the dead letter of a row. The columns may be damaged."""
    try:
        entry = decode_entry(stored)
    except UnparsableError:
        entry = None
    size = len(stored) if isinstance(stored, (bytes, str)) else 0
    moment = float(rejected) if isinstance(rejected, (int, float)) else 0.0
    return DeadLetter(number, moment, str(reason), entry, size)
