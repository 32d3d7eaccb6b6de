"""Queue of the answers that the broker does not have yet."""

from __future__ import annotations

import time
from typing import NamedTuple

from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.queue.queue import Queue
from ccagent.records.message import Message

_QUEUE_BYTES = 8 * 1024 * 1024
_QUEUE_AGE = Duration("1d")
_MOST_ANSWERS = 10_000


class QueuedAnswer(NamedTuple):
    """An answer to send. key: key of the request. number: position in the queue."""

    key: str
    topic: str
    payload: bytes
    number: int


class AnswerQueue:
    """Keeps answers in order, on disk below `directory` if possible, else in memory."""

    def __init__(self, directory: str, cluster: str, node: str, name: str = "agents.fast") -> None:
        self._cluster, self._node = cluster, node
        self._queue = Queue(
            name,
            OutboxSettings(directory=directory, max_bytes=_QUEUE_BYTES, max_age=_QUEUE_AGE),
        )

    def put(self, key: str, topic: str, payload: bytes) -> None:
        """Queue an answer."""
        message = Message(self._cluster, self._node, topic, "sonar", time.time(), payload, "", key)
        self._queue.put([message])

    def first(self) -> QueuedAnswer | None:
        """Return the oldest answer; None without one."""
        for number, message in self._queue.next_batch(1):
            return QueuedAnswer(message.id, message.kind, message.body, number)
        return None

    def payloads(self) -> dict[str, bytes]:
        """Return the payloads of all queued answers, by their keys."""
        queued = self._queue.next_batch(_MOST_ANSWERS)
        return {message.id: message.body for _, message in queued}

    def remove(self, answer: QueuedAnswer) -> None:
        """Delete an answer after the broker's confirmation."""
        self._queue.remove([answer.number])

    def reject(self, answer: QueuedAnswer, reason: str) -> None:
        """Move a rejected answer to the dead letters."""
        self._queue.reject(answer.number, reason)

    def count(self) -> int:
        """Return the number of queued answers."""
        return self._queue.count()

    def close(self) -> None:
        """Close the file."""
        self._queue.close()
