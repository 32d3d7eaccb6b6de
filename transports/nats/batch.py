"""Messages that are on their way together, and what became of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.transports.nats.client import shown

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from nats.aio.msg import Msg

Answer = RetryableError | RejectedError | None
"""What became of a message: taken, if there is no error."""

_TOO_LARGE = 10054
"""JetStream's code for a message above the limit of the stream."""


class Outgoing(NamedTuple):
    """One message as NATS sees it."""

    subject: str
    body: bytes
    id: str


class _Refusal(msgspec.Struct):
    description: str = "no reason given"
    err_code: int = 0


class _Reply(msgspec.Struct):
    """What JetStream says to a message."""

    stream: str = ""
    seq: int = 0
    error: _Refusal | None = None


_decoder = msgspec.json.Decoder(_Reply)


class Batch:
    """Collects the answers to messages, each of which gets its first; `settled` tells the end."""

    def __init__(
        self,
        server: str,
        messages: Sequence[Outgoing],
        settled: asyncio.Future[None],
        secrets: Sequence[str] = (),
    ) -> None:
        self.messages = messages
        self.answers: list[Answer] = [None] * len(messages)
        self.settled = settled
        self._server = server
        self._secrets = secrets
        self._pending = set(range(len(messages)))
        self._stored = _Reply()

    @property
    def stored(self) -> str:
        """What a stream said of the last message that it took; empty if none did."""
        last = self._stored
        if not last.stream:
            return ""
        name = shown(last.stream, self._secrets, self._subjects)
        return f"stream {name!r} has stored it as number {last.seq}"

    @property
    def is_down_to_one(self) -> bool:
        """Whether exactly one message has no answer yet."""
        return len(self._pending) == 1

    @property
    def _subjects(self) -> list[str]:
        return [message.subject for message in self.messages]

    def settle(self, number: int, answer: Answer) -> None:
        """Note what became of a message."""
        if number not in self._pending:
            return
        self._pending.remove(number)
        self.answers[number] = answer
        # It is cancelled if nobody waits any more.
        if not self._pending and not self.settled.done():
            self.settled.set_result(None)

    def settle_rest(self, answer: Answer) -> None:
        """Note what became of all that have no answer yet."""
        for number in list(self._pending):
            self.settle(number, answer)

    def reject(self, number: int, reason: str, limit: int | None = None) -> None:
        """Note that a message is larger than the server or the stream takes."""
        self.settle(number, TooLargeError(f"{self._server}: {reason}", limit=limit))

    def put_off(self, number: int, reason: str) -> None:
        """Note that a message may be taken later, and that others may be taken now."""
        text = f"{self._server}: {reason}"
        self.settle(number, RetryableError(text, is_about_message=True))

    def forbid(self, said: str) -> None:
        """Note for the messages whose subject is named in an error that we may not publish them."""
        for number in list(self._pending):
            subject = self.messages[number].subject
            if f'"{subject.lower()}"' in said.lower():
                self.put_off(number, f"we may not publish to the subject {subject!r}")

    def take_reply(self, number: int, reply: Msg) -> None:
        """Note what JetStream, or nobody, says to a message."""
        if not 0 <= number < len(self.messages):
            return
        subject = self.messages[number].subject
        if reply.headers and reply.headers.get("Status") == "503":
            self.put_off(number, f"no stream takes the subject {subject!r}")
            return
        try:
            said = _decoder.decode(reply.data)
        except msgspec.MsgspecError:
            said = _Reply()
        if said.error is not None:
            refuse = self.reject if said.error.err_code == _TOO_LARGE else self.put_off
            reason = shown(said.error.description, self._secrets, (subject,))
            refuse(number, f"{subject}: {reason}")
        elif not said.stream:
            self.put_off(number, f"what answers on the subject {subject!r} is no stream")
        else:
            self._stored = said
            self.settle(number, None)
