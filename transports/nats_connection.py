"""A connection of a sink to a NATS server: batches, and acknowledgements of JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.net.nats_session import clean_text, may_be_due_to_message
from ccagent.net.nats_thread import NatsThread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ccagent.net.nats_login import NatsOptions
    from ccagent.net.nats_session import NatsMessage, NatsSession
    from ccagent.net.urls import Server

NatsAnswer = RetryableError | RejectedError | None
"""The result of a message; None if it was accepted."""

_TOO_LARGE = 10054
"""JetStream's code for a message above the stream's limit."""

_BUSY = frozenset({10008, 10023, 10028, 10047, 10077, 10118, 10167})
"""Codes for a full or unavailable stream, and for a server that lacks resources."""

_STREAM_NAMES = "$JS.API.STREAM.NAMES"
"""The subject of requests for streams by subject (JetStream wire API reference)."""

_HEADER_SIZE = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_LONGEST_ID = 64


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
        self.stored = _JetStreamReply()
        """The stream's answer to the last stored message."""

    @property
    def is_down_to_one(self) -> bool:
        """True if exactly one message is unanswered."""
        return len(self._pending) == 1

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
            self.stored = answer
            self.settle(number, None)


class _Streams(msgspec.Struct):
    """JetStream's answer to a request for streams."""

    streams: list[str] | None = None


class NatsConnection(NatsThread):
    """A connection, from its login to its first failure.

    is_acknowledged: publish with acknowledgements of JetStream.
    """

    def __init__(
        self,
        options: NatsOptions,
        place: str,
        server: Server,
        address: str,
        *,
        is_acknowledged: bool,
    ) -> None:
        """Connect to one of the server's addresses and log in. Raise RetryableError."""
        self._options = options
        self._secrets = options.login.secrets
        self._is_acknowledged = is_acknowledged
        self._inbox = ""
        self._sent = 0
        self.server = place
        """The URL of the server."""
        self._batch: NatsBatch | None = None
        super().__init__(options, place, server, address)

    @property
    def largest_body(self) -> int:
        """Maximum body in bytes that the server accepts."""
        overhead = _HEADER_SIZE + _LONGEST_ID if self._is_acknowledged else 0
        return max(1, self.session.max_payload - overhead)

    def publish(self, messages: Sequence[Outgoing]) -> list[NatsAnswer]:
        """Publish messages. Return None for each accepted message, else its error."""
        return self._wait(self._publish(messages)) if messages else []

    def find_stream(self, subject: str) -> str:
        """Return the stream of a subject; empty without one. Raise RetryableError."""
        stream = self._wait(self._ask_for_stream(subject))
        return clean_text(stream, self._secrets, (subject,))

    @property
    def answer(self) -> str:
        """The server's answer to the last messages."""
        if self._batch is None or not self._batch.stored.stream:
            return f"{self.server} has it; core NATS does not confirm subscribers"
        subjects = [message.subject for message in self._batch.messages]
        name = clean_text(self._batch.stored.stream, self._secrets, subjects)
        return f"stream {name!r} has stored it as number {self._batch.stored.seq}"

    async def _prepare(self) -> None:
        if self._is_acknowledged:
            self._inbox = self.session.client.new_inbox()
            await self.session.subscribe(f"{self._inbox}.*", self._on_answer)

    def _is_harmless(self, _: NatsSession, error: Exception) -> bool:
        text = str(error)
        if "permissions violation for publish" not in text.lower() or self._batch is None:
            return False
        self._batch.forbid(text)
        return True

    async def _publish(self, messages: Sequence[Outgoing]) -> list[NatsAnswer]:
        batch = NatsBatch(self.server, messages, self._loop.create_future(), self._secrets)
        first, self._sent = self._sent, self._sent + len(messages)
        self._batch = batch
        try:
            await self.session.run_limited(self._transfer(batch, first))
        except RetryableError as error:
            # With several messages the cause is unknown.
            cause = self.session.cause
            error.is_about_message = (
                batch.is_down_to_one and cause is not None and may_be_due_to_message(cause)
            )
            batch.settle_rest(error)
        return batch.answers

    async def _transfer(self, batch: NatsBatch, first: int) -> None:
        client, limit = self.session.client, self.session.client.max_payload
        for number, (subject, body, identity) in enumerate(batch.messages):
            size = len(body) + (_HEADER_SIZE + len(identity) if self._inbox and identity else 0)
            if size > limit:
                reason = f"{size} bytes are more than the server takes ({limit})"
                batch.reject(number, reason, self.largest_body)
            elif self._inbox:
                headers = {"Nats-Msg-Id": identity} if identity else None
                await client.publish(subject, body, f"{self._inbox}.{first + number}", headers)
            else:
                await client.publish(subject, body)
        if self._inbox:
            await batch.settled
        else:
            await self.session.flush()  # without an error, the server has all

    async def _ask_for_stream(self, subject: str) -> str:
        streams: list[str] = []

        async def ask() -> None:
            question = msgspec.json.encode({"subject": subject})
            client, seconds = self.session.client, self._options.seconds
            reply = await client.request(_STREAM_NAMES, question, seconds)
            streams.extend(msgspec.json.decode(reply.data, type=_Streams).streams or ())

        await self.session.run_limited(ask())
        return streams[0] if streams else ""

    async def _on_answer(self, message: NatsMessage) -> None:
        if self._batch is not None:
            first = self._sent - len(self._batch.messages)
            self._batch.take_reply(int(message.subject.rpartition(".")[2]) - first, message)
