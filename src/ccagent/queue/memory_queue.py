"""The messages of one sink in memory: while the disk can't be used, or without an outbox."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.queue.entry import QueuedMessage, QueueEntry, encode_entry
from ccagent.queue.queue_clock import read_uptime

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ccagent.queue.failures import MessageChoice

_FIRST = 1 << 80
"""First number of a message: numbers on disk and in memory must differ."""


class MemoryQueue:
    """Queued messages, oldest first, and dead letters. `clock` of an entry is the uptime.

    max_bytes, max_age (seconds): above these limits the oldest dead letters, then the oldest
    messages are deleted and counted.
    """

    def __init__(self, max_bytes: int, max_age: float) -> None:
        self.dropped = 0
        self.size = 0
        """Bytes of the messages."""
        self.letters: list[QueueEntry] = []
        self._letter_bytes = 0
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._next = _FIRST
        self._messages: dict[int, tuple[QueueEntry, int]] = {}

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._messages)

    def put(self, entries: Iterable[QueueEntry]) -> None:
        """Queue entries with their clocks, and delete the oldest above the limits.

        An entry with a reason is a dead letter. Raise EncodingError for a message that can't be
        stored.
        """
        for entry in entries:
            try:
                size = len(encode_entry(entry))
            except (ValueError, TypeError, OverflowError) as error:
                raise EncodingError(f"a message can't be stored: {error}") from error
            if entry.reason:
                self.letters.append(entry)
                self._letter_bytes += len(entry.message.body)
                continue
            self._messages[self._next] = (entry, size)
            self._next += 1
            self.size += size
        while self.letters and not self.has_room(0):
            self.drop_first_letter()
            self.dropped += 1
        oldest = read_uptime() - self._max_age
        while self._messages:
            number, (entry, _) = next(iter(self._messages.items()))
            is_too_much = self.size > self._max_bytes and len(self._messages) > 1
            if not is_too_much and entry.clock >= oldest:
                break
            self.remove([number])
            self.dropped += 1

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        return self.size + self._letter_bytes + size <= self._max_bytes

    def read(self, count: int, size: int, choice: MessageChoice) -> list[QueuedMessage]:
        """Return the oldest messages: at most `count` of about `size` bytes, but at least one."""
        number, kinds, numbers = choice
        if number is not None:
            found = self._messages.get(number)
            return [] if found is None else [QueuedMessage(number, found[0])]
        chosen = (
            (number, entry, length)
            for number, (entry, length) in self._messages.items()
            if number not in numbers and (not kinds or entry.message.topic not in kinds)
        )
        messages: list[QueuedMessage] = []
        for number, entry, length in islice(chosen, count):
            size -= length
            if messages and size < 0:
                break
            messages.append(QueuedMessage(number, entry))
        return messages

    def remove(self, numbers: Collection[int]) -> list[QueueEntry]:
        """Delete messages, and return them."""
        removed = [self._messages.pop(number) for number in numbers if number in self._messages]
        self.size -= sum(size for _, size in removed)
        return [entry for entry, _ in removed]

    def drop_first_letter(self) -> None:
        """Delete the oldest dead letter."""
        self._letter_bytes -= len(self.letters.pop(0).message.body)
