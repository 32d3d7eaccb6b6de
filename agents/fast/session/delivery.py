"""Delivery of answers: one at a time, exactly once, across connections and processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ccagent.agents.fast.session.client import next_number
from ccagent.agents.fast.session.kept_state import AnswerOnItsWay
from ccagent.log import logger
from ccagent.transports.mqtt.client import REFUSED
from ccagent.transports.mqtt.connection import MqttLostError

if TYPE_CHECKING:
    from ccagent.agents.fast.session.answers import AnswerQueue, QueuedAnswer
    from ccagent.agents.fast.session.client import AnswerReply
    from ccagent.agents.fast.session.connection import FastConnection
    from ccagent.agents.fast.session.kept_state import StateKeeper


class AnswerDelivery:
    """Sends the answers of a queue over successive connections."""

    def __init__(self, answers: AnswerQueue, keeper: StateKeeper) -> None:
        self._answers = answers
        self._keeper = keeper
        self._sending: QueuedAnswer | None = None
        self._sent_at = 0.0
        self._last_number = 0

    def resume(self, connection: FastConnection) -> None:
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
            connection.release_answer(sending.number)
        else:
            self._keeper.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            connection.send_answer(
                sending.number, answer.topic, answer.payload, repeats=connection.has_session
            )

    def send_next(self, connection: FastConnection, limit: float) -> None:
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
        connection.send_answer(number, answer.topic, answer.payload, repeats=False)

    def on_reply(self, reply: AnswerReply, connection: FastConnection) -> None:
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
            connection.release_answer(reply.number)
        else:
            self._finish(answer)

    def _finish(self, answer: QueuedAnswer) -> None:
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
