"""The session with the broker: it is made again for as long as the agent runs."""

from __future__ import annotations

import random
import select
import threading
import time
from typing import TYPE_CHECKING, Protocol

from ccagent.agents.fast.session.connection import FastConnection, LastWill
from ccagent.agents.fast.session.delivery import AnswerDelivery
from ccagent.daemon.wake_up import WakeUp
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger
from ccagent.transports.mqtt.connection import MqttLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.agents.fast.session.answers import AnswerQueue
    from ccagent.agents.fast.session.client import AnswerReply
    from ccagent.agents.fast.session.connection import ReceivedMessage
    from ccagent.agents.fast.session.kept_state import StateKeeper
    from ccagent.transports.mqtt.client import MqttOptions

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_OF_SERVED = 2.0
"""Seconds before the next attempt if the broker had let us in."""
_STEADY_AFTER = 10.0
_SUSPICIOUS = 3
_LONGEST_TURN = 1.0
_MESSAGES_PER_SECOND = 50.0
_BURST = 100.0


class SessionUser(Protocol):
    """What the session serves."""

    def on_connected(self) -> None:
        """Called when a connection is there."""

    def on_message(self, received: ReceivedMessage) -> None:
        """Called for each message; it is acknowledged afterwards."""

    def filters(self) -> Iterable[str]:
        """Return what to subscribe to now."""
        ...

    def on_turn(self) -> None:
        """Called at least once a second while there is a connection."""


class FastSession:
    """Connects with backoff, subscribes, hands on what comes, and delivers answers in order."""

    def __init__(
        self,
        make_options: Callable[[], MqttOptions],
        will: LastWill,
        user: SessionUser,
        answers: AnswerQueue,
        keeper: StateKeeper,
    ) -> None:
        self.error = ""
        """Why there is no connection; empty while there is one."""
        self.dropped = 0
        """Messages that were not sent since the broker was slow or gone."""
        self._make_options = make_options
        self._will = will
        self._user = user
        self._delivery = AnswerDelivery(answers, keeper)
        self._lock = threading.RLock()
        self._connection: FastConnection | None = None
        self._wake_up = WakeUp()
        self._closing = threading.Event()
        self._limit = 10.0
        self._client_id = ""
        self._short_lived = 0
        self._tokens = _BURST
        self._filled_at = time.monotonic()
        self._is_poisoned = False
        self._served_since: float | None = None

    @property
    def is_connected(self) -> bool:
        """Return whether the broker is there."""
        return self._connection is not None

    def run(self) -> None:
        """Serve until `close`; whatever happens, connect again."""
        pause = 0.0
        while not self._closing.is_set():
            self._served_since = None
            try:
                self._serve()
            except (MqttLostError, ConfigurationError, OSError, ValueError, RuntimeError) as error:
                self._note_loss(str(error))
            except Exception:  # noqa: BLE001 - the session goes on
                self.error = "unforeseen error; see the log"
                logger.exception("agent fast: the session failed; connecting again")
            self._leave()
            pause = self._next_pause(pause)
            # Ten thousand agents lose a broker at the same moment.
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
        self._wake_up.close()

    def publish(self, topic: str, payload: bytes) -> bool:
        """Publish what may be lost; return whether it was handed to a connection."""
        with self._lock:
            connection = self._connection
            is_sent = connection is not None and connection.publish(topic, payload)
            if not is_sent:
                self.dropped += 1
        self._wake_up.set()
        return is_sent

    def look(self) -> None:
        """Have the session look at answers and subscriptions now."""
        self._wake_up.set()

    def close(self) -> None:
        """Ask `run` to end. Does not wait for it."""
        self._closing.set()
        self._wake_up.set()

    def _next_pause(self, before: float) -> float:
        """Return for how long to wait after a connection that has ended, or could not be made."""
        since = self._served_since
        if "taken over" in self.error:
            return _LONGEST_PAUSE  # by an agent with the same client-id: don't take turns
        if since is None:
            return min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE)
        if time.monotonic() - since > _STEADY_AFTER:
            self._short_lived = 0
            return _FIRST_PAUSE
        self._short_lived += 1
        if self._short_lived == _SUSPICIOUS:
            logger.error(
                "agent fast: the broker ended %d connections within seconds: perhaps another"
                " client calls itself %s",
                _SUSPICIOUS,
                self._client_id,
            )
        return min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE_OF_SERVED)

    def _note_loss(self, reason: str) -> None:
        if reason != self.error and not self._closing.is_set():
            logger.warning("agent fast: no session with the broker: %s; trying again", reason)
        self.error = reason

    def _serve(self) -> None:
        """Connect, and serve until the connection ends. Raises MqttLostError and others."""
        options = self._make_options()
        self._limit, self._client_id = options.seconds, options.client_id
        if self._is_poisoned:
            # The broker would deliver it again and again: drop the session with it.
            self._connect(options, forgets=True).close(*self._will)
            self._is_poisoned = False
        connection = self._connect(options, forgets=False)
        with self._lock:
            self._connection = connection
        if self.error:
            logger.warning("agent fast: the broker is there again")
        self.error = ""
        self._served_since = time.monotonic()
        with self._lock:
            # Before the scheduler learns that we are here, and answers at once.
            connection.subscribe(self._user.filters())
        self._user.on_connected()
        with self._lock:
            self._delivery.resume(connection)
        while not self._closing.is_set():
            self._turn(connection)
        with self._lock:
            self._connection = None
            connection.close(*self._will)

    def _connect(self, options: MqttOptions, *, forgets: bool) -> FastConnection:
        return FastConnection(
            options,
            self._will,
            on_message=self._on_message,
            on_reply=self._on_reply,
            forgets=forgets,
        )

    def _leave(self) -> None:
        """Drop the connection, if it is still there."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._delivery.doubt_release()
            if connection.is_oversized:
                logger.error(
                    "agent fast: a message that is too large has ended the connection; messages"
                    " that wait for this agent at the broker are dropped with it"
                )
                self._is_poisoned = True
            connection.abandon()

    def _turn(self, connection: FastConnection) -> None:
        """Do what is due, then wait for the broker or for somebody's call. Raises MqttLostError."""
        with self._lock:
            connection.subscribe(self._user.filters())
            self._delivery.send_next(connection, self._limit)
            is_read = connection.has_buffered
            wants_write = connection.wants_write
            descriptor = connection.descriptor
        self._user.on_turn()
        if descriptor < 0:
            raise MqttLostError("the broker closed the connection")
        poll = select.poll()
        poll.register(self._wake_up.descriptor, select.POLLIN)
        rest = self._rest()
        reads = select.POLLIN if not rest else 0
        poll.register(descriptor, reads | (select.POLLOUT if wants_write else 0))
        seconds = 0.0 if is_read and not rest else min(_LONGEST_TURN, rest or _LONGEST_TURN)
        events = dict(poll.poll(seconds * 1000))
        self._wake_up.clear()
        with self._lock:
            connection.turn(events.get(descriptor, 0), is_read=is_read and not rest)

    def _rest(self) -> float:
        """Return for how long to read nothing, since too much has come."""
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) * _MESSAGES_PER_SECOND)
        self._filled_at = now
        return max(0.0, (1.0 - self._tokens) / _MESSAGES_PER_SECOND)

    def _on_message(self, received: ReceivedMessage) -> None:
        self._tokens -= 1.0
        try:
            self._user.on_message(received)
        except CcagentError as error:
            logger.error("agent fast: %s: %s", received.topic, error)
        except Exception:  # noqa: BLE001 - a message that breaks us must not come again
            logger.exception("agent fast: a message on %s failed", received.topic)
        if (connection := self._connection) is not None:
            connection.confirm(received)

    def _on_reply(self, reply: AnswerReply) -> None:
        if (connection := self._connection) is not None:
            self._delivery.on_reply(reply, connection)
            self._wake_up.set()
