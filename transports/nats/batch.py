"""A batch of messages in flight, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.net.nats_session import clean_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ccagent.net.nats_session import NatsMessage

NatsAnswer = RetryableError | RejectedError | None
"""The result of a message; None if it was accepted."""

_TOO_LARGE = 10054
"""JetStream's code for a message above the stream's limit."""

_BUSY = frozenset({10008, 10023, 10028, 10047, 10077, 10118, 10167})
"""Codes for a full or unavailable stream, and for a server that lacks resources."""


class Outgoing(NamedTuple):
    """One message for NATS."""

    subject: str
    body: bytes
    id: str


class _JetStreamError(msgspec.Struct):
    description: str = "no reason given"
    err_code: int = 0


class _JetStreamReply(msgspec.Struct):
    """JetStream's answer to a message."""

    stream: str = ""
    seq: int = 0
    error: _JetStreamError | None = None


_decoder = msgspec.json.Decoder(_JetStreamReply)


class NatsBatch:
    """Collects the first answer to each message. `settled` is done when all are answered."""

    def __init__(
        self,
        server: str,
        messages: Sequence[Outgoing],
        settled: asyncio.Future[None],
        secrets: Sequence[str] = (),
    ) -> None:
        self.messages = messages
        self.answers: list[NatsAnswer] = [None] * len(messages)
        self.settled = settled
        self._server = server
        self._secrets = secrets
        self._pending = set(range(len(messages)))
        self._stored = _JetStreamReply()

    @property
    def stored(self) -> str:
        """The stream's answer to the last stored message; empty without one."""
        last = self._stored
        if not last.stream:
            return ""
        name = clean_text(last.stream, self._secrets, self._subjects)
        return f"stream {name!r} has stored it as number {last.seq}"

    @property
    def is_down_to_one(self) -> bool:
        """True if exactly one message is unanswered."""
        return len(self._pending) == 1

    @property
    def _subjects(self) -> list[str]:
        return [message.subject for message in self.messages]

    def settle(self, number: int, answer: NatsAnswer) -> None:
        """Keep the result of a message."""
        if number not in self._pending:
            return
        self._pending.remove(number)
        self.answers[number] = answer
        # It is cancelled if the caller no longer waits.
        if not self._pending and not self.settled.done():
            self.settled.set_result(None)

    def settle_rest(self, answer: NatsAnswer) -> None:
        """Keep a result for all messages without one."""
        for number in list(self._pending):
            self.settle(number, answer)

    def reject(self, number: int, reason: str, limit: int | None = None) -> None:
        """Note that a message is larger than the limit of the server or the stream."""
        self.settle(number, TooLargeError(f"{self._server}: {reason}", limit=limit))

    def put_off(self, number: int, reason: str, *, is_busy: bool = False) -> None:
        """Note that a message may be accepted later, and others may be accepted now."""
        text = f"{self._server}: {reason}"
        self.settle(number, RetryableError(text, is_about_message=True, is_busy=is_busy))

    def forbid(self, text: str) -> None:
        """Note that this user may not publish to the subject in an error."""
        for number in list(self._pending):
            subject = self.messages[number].subject
            if f'"{subject.lower()}"' in text.lower():
                self.put_off(number, f"this user may not publish to the subject {subject!r}")

    def take_reply(self, number: int, reply: NatsMessage) -> None:
        """Keep JetStream's answer, or the server's if the subject has no stream."""
        if not 0 <= number < len(self.messages):
            return
        subject = self.messages[number].subject
        if reply.headers and reply.headers.get("Status") == "503":
            self.put_off(number, f"no stream takes the subject {subject!r}")
            return
        try:
            answer = _decoder.decode(reply.data)
        except msgspec.MsgspecError:
            answer = _JetStreamReply()
        if answer.error is not None:
            code = answer.error.err_code
            reason = clean_text(answer.error.description, self._secrets, (subject,))
            if code == _TOO_LARGE:
                self.reject(number, f"{subject}: {reason}")
            else:
                self.put_off(number, f"{subject}: {reason}", is_busy=code in _BUSY)
        elif not answer.stream:
            self.put_off(number, f"the answer on the subject {subject!r} is not that of a stream")
        else:
            self._stored = answer
            self.settle(number, None)
