"""One connection to a NATS server: nats-py's event loop in a thread, with time limits.

nats-py must not reconnect, because it would buffer messages. A failed connection is discarded with
its loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import nats.errors

from ccagent.errors import RetryableError
from ccagent.log import logger
from ccagent.net.network_errors import explain_network_error
from ccagent.transports.nats.batch import NatsBatch
from ccagent.transports.nats.client import (
    THREADS,
    NatsClient,
    clean_text,
    explain_error,
    is_lost,
    may_be_due_to_message,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Sequence

    from nats.aio.msg import Msg

    from ccagent.net.urls import Server
    from ccagent.transports.nats.batch import NatsAnswer, Outgoing
    from ccagent.transports.nats.login import NatsLogin

T = TypeVar("T")

_GRACE = 1.0
"""Maximum seconds for the end of a healthy connection."""

_LOOK = 0.2
_STREAM_NAMES = "$JS.API.STREAM.NAMES"
"""The subject of requests for streams by subject (JetStream wire API reference)."""

_HEADER_SIZE = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_LONGEST_ID = 64
_WAITING_ANSWERS = 65536
_WAITING_BYTES = 8 * 1024 * 1024
"""Maximum number of pending acknowledgements; more than the messages in flight."""

_LIFE = 1.0
"""Seconds between checks that the thread of the event loop is alive."""


class NatsOptions(NamedTuple):
    """Options for connections to the servers of a sink.

    name: of this client. context: checks certificates; with a context, TLS is required.
    has_certificate: the context has a client certificate. acknowledged: publish with
    acknowledgements of JetStream.
    """

    scheme: str
    name: str
    login: NatsLogin
    context: ssl.SSLContext | None
    has_certificate: bool
    seconds: float
    acknowledged: bool


class _Streams(msgspec.Struct):
    """JetStream's answer to a request for streams."""

    streams: list[str] | None = None


class NatsConnection:
    """A connection, from its login to its first failure."""

    def __init__(self, way: NatsOptions, server: Server, address: str) -> None:
        """Connect to one of the server's addresses and log in. Raise RetryableError."""
        self._options = way
        self._host = server.host
        self._server = f"{way.scheme}://{server}"
        self._client = NatsClient()
        self._inbox = ""
        self._sent = 0
        self._batch: NatsBatch | None = None
        self._broken = False
        self._cause: BaseException | None = None
        self._loop = _new_loop()
        self._loop.set_exception_handler(_log)
        self._failed: asyncio.Future[Exception] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._work, name=f"{THREADS}{server.host}", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise
        host = f"[{address}]" if ":" in address else address
        try:
            self._wait(self._run_limited(self._open(f"nats://{host}:{server.port}")))
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """False after any failure. Then only `close` may be called."""
        return not self._broken and self._client.is_connected and self._thread.is_alive()

    @property
    def largest_body(self) -> int:
        """Maximum body in bytes that the server accepts."""
        overhead = _HEADER_SIZE + _LONGEST_ID if self._options.acknowledged else 0
        return max(1, self._client.max_payload - overhead)

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
        return self._server

    @property
    def answer(self) -> str:
        """The server's answer to the last messages."""
        stored = self._batch.stored if self._batch is not None else ""
        return stored or f"{self._server} has it; core NATS does not confirm subscribers"

    def close(self) -> None:
        """End the connection and the thread. Takes at most a few seconds."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(4 * _GRACE)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop. Raise RetryableError if its thread has ended."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait((future,), _LIFE).done:
                if not self._thread.is_alive():
                    text = f"{self._server}: the thread of the connection has ended"
                    raise RetryableError(text)  # noqa: TRY301 - the connection is broken
            return future.result()
        except BaseException:
            # After an interruption a message may be sent only partly.
            self._broken = True
            future.cancel()
            raise

    def _work(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            try:
                self._loop.run_until_complete(self._end())
            finally:
                self._loop.close()

    async def _open(self, url: str) -> None:
        way = self._options
        self._client.encrypted = way.context is not None
        if self._client.encrypted and not self._client.can_insist:
            raise nats.errors.Error("this version of nats-py can't insist on TLS")
        try:
            await self._client.connect(
                url,
                name=way.name,
                allow_reconnect=False,
                # The caller has a time limit for the whole login.
                connect_timeout=int(way.seconds) + 1,
                tls=way.context,
                tls_hostname=self._host,
                no_echo=True,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                **way.login.options(),
            )
        except (OSError, nats.errors.Error) as error:
            if not is_lost(error):
                raise
        if not self._client.is_connected:
            raise nats.errors.Error(
                "the server closed the connection during the login" + self._hint()
            )
        limit: Any = self._client.max_payload
        if not isinstance(limit, int) or limit < 1:
            raise nats.errors.Error("the server takes messages of 0 bytes only")
        if way.acknowledged:
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType]
                f"{self._inbox}.*",
                cb=self._on_answer,
                pending_msgs_limit=_WAITING_ANSWERS,
                pending_bytes_limit=_WAITING_BYTES,
            )

    def _hint(self) -> str:
        """Return a likely reason. With TLS 1.3, the refusal of a certificate may not arrive."""
        if self._options.context is None:
            return ""
        if self._options.has_certificate:
            return ": it may not trust the client certificate"
        return ": it may require a client certificate (certificate-file, key-file)"

    async def _publish(self, messages: Sequence[Outgoing]) -> list[NatsAnswer]:
        secrets = self._options.login.secrets
        batch = NatsBatch(self._server, messages, self._loop.create_future(), secrets)
        first, self._sent = self._sent, self._sent + len(messages)
        self._batch = batch
        try:
            await self._run_limited(self._transfer(batch, first))
        except RetryableError as error:
            # With several messages the cause is unknown.
            error.is_about_message = (
                batch.is_down_to_one
                and self._cause is not None
                and may_be_due_to_message(self._cause)
            )
            batch.settle_rest(error)
        return batch.answers

    async def _transfer(self, batch: NatsBatch, first: int) -> None:
        client, limit = self._client, self._client.max_payload
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
            # A flush sends its PING before messages that are pending in the client. Its PONG does
            # not confirm these messages. They are sent before the second PING.
            while True:
                was_empty = client.pending_data_size == 0
                await client.flush(int(self._options.seconds) + 1)
                if was_empty:
                    break
            batch.settle_rest(None)
        await batch.settled

    async def _ask_for_stream(self, subject: str) -> str:
        found: list[str] = []

        async def ask() -> None:
            question = msgspec.json.encode({"subject": subject})
            reply = await self._client.request(_STREAM_NAMES, question, self._options.seconds)
            found.extend(msgspec.json.decode(reply.data, type=_Streams).streams or ())

        await self._run_limited(ask())
        return found[0] if found else ""

    async def _run_limited(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it is done.

        Raise RetryableError if the time limit is exceeded or the connection has failed.
        """
        task = self._loop.create_task(coroutine)
        deadline = self._loop.time() + self._options.seconds
        try:
            while not task.done():
                rest = deadline - self._loop.time()
                if rest <= 0:
                    raise TimeoutError  # noqa: TRY301 - explain_error below like all others
                # Checked periodically: the client may hang in its close before it reports an error.
                watched: set[asyncio.Future[Any]] = {task, self._failed}
                await asyncio.wait(
                    watched, timeout=min(rest, _LOOK), return_when=asyncio.FIRST_COMPLETED
                )
                if not task.done() and (self._failed.done() or self._client.is_closed):
                    raise self._failed.result() if self._failed.done() else ConnectionResetError  # noqa: TRY301
            task.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raises of the library
            self._broken = True
            self._cause = error
            # Only this unblocks a client that waits on a full socket.
            self._client.abort()
            task.cancel()
            text = f"{self._server}: {self._explain(error)}"
            raise RetryableError(text) from None  # the cause may repeat a secret

    def _explain(self, error: BaseException) -> str:
        if isinstance(error, (TimeoutError, nats.errors.TimeoutError)):
            return explain_network_error(TimeoutError(), self._options.seconds)
        return self._client.excess or explain_error(error, self._options.login.secrets)

    async def _on_answer(self, message: Msg) -> None:
        if self._batch is not None:
            first = self._sent - len(self._batch.messages)
            self._batch.take_reply(int(message.subject.rpartition(".")[2]) - first, message)

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation for publish" in text.lower() and self._batch is not None:
            self._batch.forbid(text)
        elif not self._failed.done():
            self._failed.set_result(error)

    async def _on_closed(self) -> None:
        if not self._failed.done():
            self._failed.set_result(self._client.last_error or ConnectionResetError())

    async def _end(self) -> None:
        """Close the client in any state, and end all tasks of the loop."""
        if self.is_open:
            await asyncio.wait({self._loop.create_task(self._client.close())}, timeout=_GRACE)
        self._client.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)
        await asyncio.sleep(0)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop. Raise OSError if no descriptor is free."""
    # A partly created loop would print to stderr on failure. So try its descriptors first.
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


def _log(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors of a failed connection's loop, without texts of a server."""
    kind = type(context.get("exception")).__name__
    logger.library().getChild("nats").debug("%s: %s", context.get("message"), kind)
