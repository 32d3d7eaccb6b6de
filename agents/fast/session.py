"""The session with the broker, renewed as long as the agent runs; queue and delivery of answers."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ccagent.agents.fast.kept_state import AnswerOnItsWay
from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger
from ccagent.net.mqtt import MqttConnection
from ccagent.net.mqtt_broker import FIRST_NUMBERED, LAST_NUMBERED, REFUSED, MqttLostError
from ccagent.queue.queue import Queue
from ccagent.records.message import Message
from ccagent.service.signals import WakeUp

if TYPE_CHECKING:
    from ccagent.net.mqtt_broker import MqttOptions, NumberedReply, ReceivedMessage

_QUEUE_BYTES = 8 * 1024 * 1024
_QUEUE_AGE = Duration("1d")
_MOST_ANSWERS = 10_000

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 60.0

_LONGEST_PAUSE_OF_SERVED = 2.0
"""Maximum seconds before the next attempt after an accepted connection."""

_STEADY_AFTER = 10.0
_SUSPICIOUS = 3
_LONGEST_TURN = 1.0
_MESSAGES_PER_SECOND = 50.0
_BURST = 100.0

_MOST_WAITING = 1000
"""Limit of waiting droppable messages; further messages are dropped."""


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


class SessionProtocol(Protocol):
    """What a session serves. Its methods are called in the thread of the session."""

    def filters(self) -> list[str]:
        """Return the topic filters to subscribe to."""
        ...

    def on_connected(self) -> None:
        """Act on a new connection, after its subscriptions."""
        ...

    def on_turn(self) -> None:
        """Do due work, at least every second."""
        ...

    def on_message(self, received: ReceivedMessage) -> None:
        """Handle a message. It is acknowledged when this returns."""
        ...


class _KeptSending(Protocol):
    sending: AnswerOnItsWay | None


class KeptSession(Protocol):
    """The state of a session on disk."""

    @property
    def state(self) -> _KeptSending:
        """The part that is the session's."""
        ...

    def save(self) -> None:
        """Write the state."""
        ...


class AnswerDelivery:
    """Sends the answers of a queue over successive connections and processes.

    An answer is sent at QoS 2 with a packet identifier that is kept on disk. So a new process
    continues the handshake of a killed one.
    """

    def __init__(self, answers: AnswerQueue, kept: KeptSession, name: str) -> None:
        self._answers = answers
        self._kept = kept
        self._name = name
        self._sending: QueuedAnswer | None = None
        self._sent_at = 0.0
        self._last_number = 0

    def resume(self, connection: MqttConnection) -> None:
        """Continue with the answer in flight at the end of the last connection."""
        self._sending = None
        sending = self._kept.state.sending
        answer = self._answers.first()
        if sending is None or answer is None or answer.key != sending.key:
            self._kept.state.sending = None
            return
        self._sending, self._sent_at = answer, time.monotonic()
        # A broker without the session may have lost the answer, too.
        if sending.is_released and connection.has_session:
            connection.release(sending.number)
        else:
            self._kept.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
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
        state = self._kept.state
        before = state.sending.number if state.sending is not None else self._last_number
        number = self._last_number = next_number(before)
        state.sending = AnswerOnItsWay(key=answer.key, number=number)
        self._kept.save()
        self._sending, self._sent_at = answer, time.monotonic()
        connection.publish_numbered(number, answer.topic, answer.payload, repeats=False)

    def on_reply(self, reply: NumberedReply, connection: MqttConnection) -> None:
        """Handle the broker's reply to the answer in flight."""
        state, answer = self._kept.state, self._sending
        sending = state.sending
        if answer is None or sending is None or sending.number != reply.number:
            return
        if reply.reason >= REFUSED and not sending.is_released:
            logger.error(
                "%s: the broker refuses an answer to %s (reason %#x); see its access list",
                self._name,
                answer.topic,
                reply.reason,
            )
            self._answers.reject(answer, f"reason {reply.reason:#x}")
            self._done()
        elif reply.is_released:
            state.sending = AnswerOnItsWay(key=sending.key, number=sending.number, is_released=True)
            self._kept.save()
            self._sent_at = time.monotonic()
            connection.release(reply.number)
        else:
            self._answers.remove(answer)
            self._done()

    def _done(self) -> None:
        """Forget the answer in flight. The state file is written with the next answer."""
        self._sending = None
        self._kept.state.sending = None

    def doubt_release(self) -> None:
        """Mark a released answer for repetition: the broker may have lost it.

        A killed broker restarts from its last saved state and reports a lost message as complete. A
        broker that still has the message recognises its identifier.
        """
        sending = self._kept.state.sending
        if sending is not None and sending.is_released:
            self._kept.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            self._kept.save()


def next_number(before: int) -> int:
    """Return the packet identifier after the identifier `before`."""
    return before + 1 if FIRST_NUMBERED <= before < LAST_NUMBERED else FIRST_NUMBERED


class FastSession:
    """Connects with backoff, subscribes, passes on messages, and delivers answers in order."""

    def __init__(
        self,
        options: MqttOptions,
        protocol: SessionProtocol,
        answers: AnswerQueue,
        kept: KeptSession,
        name: str = "agent fast",
    ) -> None:
        """Prepare a session. name: of the service, in log lines."""
        self.error = ""
        """Reason for a missing connection; empty while connected."""
        self.dropped = 0
        """Messages dropped because the broker was slow or unreachable."""
        self._options = options
        self._protocol = protocol
        self._name = name
        self._delivery = AnswerDelivery(answers, kept, name)
        self._lock = threading.RLock()
        self._connection: MqttConnection | None = None
        self._wake_up = WakeUp()
        self._closing = threading.Event()
        self._limit = options.settings.time_limit.seconds
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._published = 0
        self._short_lived = 0
        self._tokens = _BURST
        self._filled_at = time.monotonic()
        self._is_poisoned = False
        self._served_since: float | None = None

    @property
    def is_connected(self) -> bool:
        """Return whether the session is connected."""
        return self._connection is not None

    def run(self) -> None:
        """Serve until `close`; connect again after any error."""
        pause = 0.0
        while not self._closing.is_set():
            self._served_since = None
            try:
                self._serve()
            except (MqttLostError, ConfigurationError, OSError, ValueError, RuntimeError) as error:
                self._note_loss(str(error))
            except Exception:  # noqa: BLE001 - the session continues
                self.error = "unforeseen error; see the log"
                logger.exception("%s: the session failed; connecting again", self._name)
            self._leave()
            pause = self._next_pause(pause)
            # Random pause, because ten thousand agents lose a broker at the same time.
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
        self._wake_up.close()

    def publish(self, topic: str, payload: bytes) -> bool:
        """Publish a message that may be lost; return whether a connection accepted it."""
        with self._lock:
            connection = self._connection
            is_kept = (
                connection is not None
                and not connection.ended
                and len(self._waiting) < _MOST_WAITING
            )
            if connection is not None and is_kept:
                self._waiting.append((topic, payload))
                self._send_waiting(connection)
            else:
                self.dropped += 1
        self._wake_up.set()
        return is_kept

    def look(self) -> None:
        """Wake the session to check answers and subscriptions now."""
        self._wake_up.set()

    def close(self) -> None:
        """Stop `run`, without waiting for its end."""
        self._closing.set()
        self._wake_up.set()

    def _next_pause(self, before: float) -> float:
        """Return the seconds to wait after an ended or failed connection."""
        since = self._served_since
        if "taken over" in self.error:
            return _LONGEST_PAUSE  # another agent has the same client-id: don't alternate
        if since is None:
            return min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE)
        if time.monotonic() - since > _STEADY_AFTER:
            self._short_lived = 0
            return _FIRST_PAUSE
        self._short_lived += 1
        if self._short_lived == _SUSPICIOUS:
            logger.error(
                "%s: the broker ended %d connections within seconds: perhaps another"
                " client has the client-id %s",
                self._name,
                _SUSPICIOUS,
                self._options.client_id,
            )
        return min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE_OF_SERVED)

    def _note_loss(self, reason: str) -> None:
        if reason != self.error and not self._closing.is_set():
            logger.warning("%s: no session with the broker: %s; retrying", self._name, reason)
        self.error = reason

    def _serve(self) -> None:
        """Connect, and serve until the connection ends. Raise MqttLostError and other errors."""
        if self._is_poisoned:
            # The broker would deliver the message repeatedly: drop the session to drop the message.
            self._connect(forgets=True).close()
            self._is_poisoned = False
        connection = self._connect(forgets=False)
        with self._lock:
            self._connection = connection
        if self.error:
            logger.warning("%s: connected to the broker again", self._name)
        self.error = ""
        self._served_since = time.monotonic()
        with self._lock:
            # Subscribe before `init`: the scheduler answers it at once.
            connection.subscribe(self._protocol.filters())
        self._protocol.on_connected()
        with self._lock:
            self._delivery.resume(connection)
        while not self._closing.is_set():
            self._turn(connection)
        with self._lock:
            self._connection = None
            connection.close()

    def _connect(self, *, forgets: bool) -> MqttConnection:
        return MqttConnection(
            self._options._replace(is_passing=forgets),
            on_message=self._on_message,
            on_reply=self._on_reply,
        )

    def _leave(self) -> None:
        """Drop the connection, if any."""
        with self._lock:
            connection, self._connection = self._connection, None
            self.dropped += len(self._waiting)
            self._waiting.clear()
        if connection is not None:
            self._delivery.doubt_release()
            if connection.is_oversized:
                logger.error(
                    "%s: a too large message has ended the connection; the broker drops all"
                    " waiting messages for it",
                    self._name,
                )
                self._is_poisoned = True
            connection.abandon()

    def _turn(self, connection: MqttConnection) -> None:
        """Do due work, then wait for the broker or `look`. Raise MqttLostError at the end."""
        with self._lock:
            connection.subscribe(self._protocol.filters())
            self._delivery.send_next(connection, self._limit)
        self._protocol.on_turn()
        rest = self._rest()
        seconds = min(_LONGEST_TURN, rest or _LONGEST_TURN)
        events = connection.poll(seconds, reads=not rest, wake_up=self._wake_up.descriptor)
        self._wake_up.clear()
        with self._lock:
            connection.turn(events)
            self._note_refusals(connection)
            self._send_waiting(connection)
        if connection.ended:
            raise MqttLostError(connection.ended)

    def _send_waiting(self, connection: MqttConnection) -> None:
        """Send waiting messages while there is room, also for the answer in flight."""
        with suppress(MqttLostError):  # `_leave` drops the rest
            while self._waiting and connection.has_room(len(self._waiting[0][1]), reserve=1):
                connection.publish(self._published, *self._waiting[0])
                self._waiting.popleft()
                self._published += 1

    def _note_refusals(self, connection: MqttConnection) -> None:
        """Log what the broker has refused."""
        for reason in connection.results.values():
            if reason >= REFUSED:
                logger.warning(
                    "%s: the broker refuses to publish (reason %#x); see its access list",
                    self._name,
                    reason,
                )
        connection.results.clear()
        for topic_filter, text in connection.refused_filters.items():
            logger.error(
                "%s: the broker refuses to subscribe to %s: %s; see its access list",
                self._name,
                topic_filter,
                text,
            )
        connection.refused_filters.clear()

    def _rest(self) -> float:
        """Return the seconds without reading, to limit the rate of messages."""
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) * _MESSAGES_PER_SECOND)
        self._filled_at = now
        return max(0.0, (1.0 - self._tokens) / _MESSAGES_PER_SECOND)

    def _on_message(self, received: ReceivedMessage) -> None:
        self._tokens -= 1.0
        try:
            self._protocol.on_message(received)
        except CcagentError as error:
            logger.error(
                "%s: %s: %s", self._name, received.topic, error, key=f"{self._name} message"
            )
        except Exception:  # noqa: BLE001 - acknowledge a failing message: no repetition
            logger.exception(
                "%s: a message on %s failed",
                self._name,
                received.topic,
                key=f"{self._name} message failed",
            )
        if (connection := self._connection) is not None:
            connection.confirm(received)

    def _on_reply(self, reply: NumberedReply) -> None:
        if (connection := self._connection) is not None:
            self._delivery.on_reply(reply, connection)
            self._wake_up.set()
