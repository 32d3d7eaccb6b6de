"""Delivery of answers: one at a time, each once, whatever ends in between."""

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
    """Sends the answers of a queue over one connection after the other."""

    def __init__(self, answers: AnswerQueue, keeper: StateKeeper) -> None:
        self._answers = answers
        self._keeper = keeper
        self._sending: QueuedAnswer | None = None
        self._sent_at = 0.0
        self._last_number = 0

    def resume(self, connection: FastConnection) -> None:
        """Go on with the answer that was on its way when the last connection ended."""
        self._sending = None
        sending = self._keeper.state.sending
        answer = self._answers.first()
        if sending is None or answer is None or answer.key != sending.key:
            self._keeper.state.sending = None
            return
        self._sending, self._sent_at = answer, time.monotonic()
        # A broker that has lost the session may have lost the answer with it.
        if sending.is_released and connection.has_session:
            connection.release_answer(sending.number)
        else:
            self._keeper.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            connection.send_answer(
                sending.number, answer.topic, answer.payload, repeats=connection.has_session
            )

    def send_next(self, connection: FastConnection, limit: float) -> None:
        """Send the oldest answer, unless one is on its way. Raises MqttLostError."""
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
        """Note what the broker says to the answer that is on its way."""
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
        """Forget the answer that was on its way. What is on disk is written with the next one."""
        self._sending = None
        self._keeper.state.sending = None

    def doubt_release(self) -> None:
        """Have an answer sent again that the broker may have lost with the connection.

        A broker that was killed comes back with what it wrote last, and says of a message that it
        lost that it is complete. One that still has the message knows it by its identifier.
        """
        sending = self._keeper.state.sending
        if sending is not None and sending.is_released:
            self._keeper.state.sending = AnswerOnItsWay(key=sending.key, number=sending.number)
            self._keeper.save()
