"""Answers: kept on disk like the queue of a sink, and delivered one at a time, exactly once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.fast.session.kept_state import AnswerOnItsWay
from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.log import logger
from ccagent.net.mqtt_broker import FIRST_NUMBERED, LAST_NUMBERED, REFUSED, MqttLostError
from ccagent.queue.queue import Queue
from ccagent.records.message import Message

if TYPE_CHECKING:
    from ccagent.agents.fast.session.kept_state import StateKeeper
    from ccagent.net.mqtt import MqttConnection
    from ccagent.net.mqtt_broker import NumberedReply

_NAME = "agents.fast"
_BYTES = 8 * 1024 * 1024
_AGE = Duration("1d")
_MOST = 10_000


class QueuedAnswer(NamedTuple):
    """An answer to send. key: key of the request. number: position in the queue."""

    key: str
    topic: str
    payload: bytes
    number: int


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
        for number, entry in self._queue.next_batch(1):
            message = entry.message
            return QueuedAnswer(message.id, message.kind, message.body, number)
        return None

    def keys(self) -> set[str]:
        """Return the keys of all queued answers."""
        return {queued.message.id for queued in self._queue.next_batch(_MOST)}

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


class AnswerDelivery:
    """Sends the answers of a queue over successive connections and processes.

    An answer is sent at QoS 2 with a packet identifier that is kept on disk. So a new process
    continues the handshake of a killed one.
    """

    def __init__(self, answers: AnswerQueue, keeper: StateKeeper) -> None:
        self._answers = answers
        self._keeper = keeper
        self._sending: QueuedAnswer | None = None
        self._sent_at = 0.0
        self._last_number = 0

    def resume(self, connection: MqttConnection) -> None:
        """Continue with the answer in flight at the end of the last connection."""
        self._sending = None
        sending = self._keeper.state.sending
        answer = self._answers.first()
        if sending is None or answer is None or answer.key != sending.key:
            self._keeper.state.sending = None
            return
        self._sending, self._sent_at = answer, time.monotonic()
        # A broker without the session may have lost the answer, too.
        if sending.is_released and connection.has_session:
            connection.release(sending.number)
        else:
            self._keeper.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            connection.publish_numbered(
                sending.number, answer.topic, answer.payload, repeats=connection.has_session
            )

    def send_next(self, connection: MqttConnection, limit: float) -> None:
        """Send the oldest answer, unless one is in flight. Raise MqttLostError after the limit."""
        if self._sending is not None:
            if time.monotonic() - self._sent_at > limit:
                raise MqttLostError(f"no acknowledgement came within {limit:g} s")
            return
        answer = self._answers.first()
        if answer is None:
            return
        state = self._keeper.state
        before = state.sending.number if state.sending is not None else self._last_number
        number = self._last_number = next_number(before)
        state.sending = AnswerOnItsWay(key=answer.key, number=number)
        self._keeper.save()
        self._sending, self._sent_at = answer, time.monotonic()
        connection.publish_numbered(number, answer.topic, answer.payload, repeats=False)

    def on_reply(self, reply: NumberedReply, connection: MqttConnection) -> None:
        """Handle the broker's reply to the answer in flight."""
        state, answer = self._keeper.state, self._sending
        sending = state.sending
        if answer is None or sending is None or sending.number != reply.number:
            return
        if reply.reason >= REFUSED and not sending.is_released:
            logger.error(
                "agent fast: the broker refuses an answer to %s (reason %#x); see its access list",
                answer.topic,
                reply.reason,
            )
            self._answers.reject(answer, f"reason {reply.reason:#x}")
            self._done()
        elif reply.is_released:
            state.sending = AnswerOnItsWay(key=sending.key, number=sending.number, is_released=True)
            self._keeper.save()
            self._sent_at = time.monotonic()
            connection.release(reply.number)
        else:
            self._answers.remove(answer)
            self._done()

    def _done(self) -> None:
        """Forget the answer in flight. The state file is written with the next answer."""
        self._sending = None
        self._keeper.state.sending = None

    def doubt_release(self) -> None:
        """Mark a released answer for repetition: the broker may have lost it.

        A killed broker restarts from its last saved state and reports a lost message as complete. A
        broker that still has the message recognises its identifier.
        """
        sending = self._keeper.state.sending
        if sending is not None and sending.is_released:
            self._keeper.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            self._keeper.save()


def next_number(before: int) -> int:
    """Return the packet identifier after the identifier `before`."""
    return before + 1 if FIRST_NUMBERED <= before < LAST_NUMBERED else FIRST_NUMBERED
