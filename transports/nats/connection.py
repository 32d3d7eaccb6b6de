"""A connection of a sink to a NATS server: batches, and acknowledgements of JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import RetryableError
from ccagent.net.nats_session import NatsThread, clean_text, may_be_due_to_message
from ccagent.transports.nats.batch import NatsBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.net.nats_login import NatsOptions
    from ccagent.net.nats_session import NatsMessage, NatsSession
    from ccagent.net.urls import Server
    from ccagent.transports.nats.batch import NatsAnswer, Outgoing

_STREAM_NAMES = "$JS.API.STREAM.NAMES"
"""The subject of requests for streams by subject (JetStream wire API reference)."""

_HEADER_SIZE = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_LONGEST_ID = 64


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
        self._is_acknowledged = is_acknowledged
        self._inbox = ""
        self._sent = 0
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
        return clean_text(stream, self._options.login.secrets, (subject,))

    @property
    def server(self) -> str:
        """The URL of the server."""
        return self.session.place

    @property
    def answer(self) -> str:
        """The server's answer to the last messages."""
        stored = self._batch.stored if self._batch is not None else ""
        return stored or f"{self.server} has it; core NATS does not confirm subscribers"

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
        secrets = self._options.login.secrets
        batch = NatsBatch(self.server, messages, self._loop.create_future(), secrets)
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
        client, limit = self.session.client, self.session.max_payload
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
        if not self._inbox:
            await self.session.flush()
            batch.settle_rest(None)
        await batch.settled

    async def _ask_for_stream(self, subject: str) -> str:
        found: list[str] = []

        async def ask() -> None:
            question = msgspec.json.encode({"subject": subject})
            client, seconds = self.session.client, self._options.seconds
            reply = await client.request(_STREAM_NAMES, question, seconds)
            found.extend(msgspec.json.decode(reply.data, type=_Streams).streams or ())

        await self.session.run_limited(ask())
        return found[0] if found else ""

    async def _on_answer(self, message: NatsMessage) -> None:
        if self._batch is not None:
            first = self._sent - len(self._batch.messages)
            self._batch.take_reply(int(message.subject.rpartition(".")[2]) - first, message)
