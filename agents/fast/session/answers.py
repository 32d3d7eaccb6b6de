"""Queue of answers on disk, like the queue of a sink, until the broker confirms them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.queue.queue import Queue
from ccagent.records.message import Message

if TYPE_CHECKING:
    from ccagent.queue.queue import QueueBatch

_NAME = "agents.fast"
_BYTES = 8 * 1024 * 1024
_AGE = Duration("1d")
_MOST = 10_000


class QueuedAnswer(NamedTuple):
    """An answer to send. key: key of the request. number, batch: position in the queue."""

    key: str
    topic: str
    payload: bytes
    number: int
    batch: QueueBatch


class AnswerQueue:
    """Keeps answers in order, on disk below `directory` if possible, else in memory."""

    def __init__(self, directory: str, cluster: str, node: str) -> None:
        self._cluster, self._node = cluster, node
        self._queue = Queue(
            _NAME, OutboxSettings(directory=directory, max_bytes=_BYTES, max_age=_AGE)
        )

    def put(self, key: str, topic: str, payload: bytes) -> None:
        """Queue an answer."""
        message = Message(self._cluster, self._node, topic, "sonar", time.time(), payload, "", key)
        self._queue.put([message])

    def first(self) -> QueuedAnswer | None:
        """Return the oldest answer; None without one."""
        batch = self._queue.next_batch(1)
        if not batch.messages:
            return None
        waiting = batch.messages[0]
        message = waiting.message
        return QueuedAnswer(message.id, message.kind, message.body, waiting.number, batch)

    def keys(self) -> set[str]:
        """Return the keys of all queued answers."""
        found = self._queue.next_batch(_MOST)
        return {waiting.message.id for waiting in found.messages}

    def remove(self, answer: QueuedAnswer) -> None:
        """Delete an answer after the broker's confirmation."""
        self._queue.remove(answer.batch, [answer.number])

    def reject(self, answer: QueuedAnswer, reason: str) -> None:
        """Move a rejected answer to the dead letters."""
        self._queue.reject(answer.batch, answer.number, reason)

    def count(self) -> int:
        """Return the number of queued answers."""
        return self._queue.count()

    def close(self) -> None:
        """Close the file."""
        self._queue.close()
