"""One connection to a NATS server: nats-py's event loop in a thread, under time limits.

nats-py's own reconnecting is off, for it buffers silently what it can't send. A connection that
failed in any way is not mended but thrown away, with its loop and all that is left in it.
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
from ccagent.transports.nats.batch import Batch
from ccagent.transports.nats.client import (
    THREADS,
    Client,
    explained,
    is_lost,
    may_be_due_to_message,
    shown,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Sequence

    from nats.aio.msg import Msg

    from ccagent.transports.nats.batch import Answer, Outgoing
    from ccagent.transports.nats.login import Login
    from ccagent.transports.urls import Server

T = TypeVar("T")

_GRACE = 1.0
"""Seconds that a healthy connection has for its end."""

_LOOK = 0.2
_STREAM_NAMES = "$JS.API.STREAM.NAMES"
"""Where JetStream is asked for streams by subject (JetStream wire API reference)."""

_HEADER_SIZE = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
_LONGEST_ID = 64
_WAITING_ANSWERS = 65536
_WAITING_BYTES = 8 * 1024 * 1024
"""Acknowledgements that may wait to be looked at; more than those of what is on its way."""

_LIFE = 1.0
"""Seconds between looks whether the thread of the event loop is alive."""


class Way(NamedTuple):
    """How to connect to the servers of a sink.

    name: what we call ourselves. context: how certificates are checked; with one, TLS is a must.
    has_certificate: whether we show one. acknowledged: publish with acknowledgements of JetStream.
    """

    scheme: str
    name: str
    login: Login
    context: ssl.SSLContext | None
    has_certificate: bool
    seconds: float
    acknowledged: bool


class _Streams(msgspec.Struct):
    """What JetStream says to the question for streams."""

    streams: list[str] | None = None


class Connection:
    """A connection, from its login to its first failure."""

    def __init__(self, way: Way, server: Server, address: str) -> None:
        """Connect to one of the server's addresses and log in. Raises RetryableError."""
        self._way = way
        self._host = server.host
        self._server = f"{way.scheme}://{server}"
        self._client = Client()
        self._inbox = ""
        self._sent = 0
        self._batch: Batch | None = None
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
            self._wait(self._limited(self._open(f"nats://{host}:{server.port}")))
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """False once anything has failed: then it is good for nothing but `close`."""
        return not self._broken and self._client.is_connected and self._thread.is_alive()

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body that the server takes."""
        overhead = _HEADER_SIZE + _LONGEST_ID if self._way.acknowledged else 0
        return max(1, self._client.max_payload - overhead)

    def publish(self, messages: Sequence[Outgoing]) -> list[Answer]:
        """Publish messages: None for those taken, else the reason."""
        return self._wait(self._publish(messages)) if messages else []

    def stream_of(self, subject: str) -> str:
        """Return the stream that takes a subject, empty for none. Raises RetryableError."""
        stream = self._wait(self._named_stream(subject))
        return shown(stream, self._way.login.secrets, (subject,))

    @property
    def server(self) -> str:
        """Which of the servers it is, as a URL."""
        return self._server

    @property
    def answer(self) -> str:
        """What the server said to the last messages."""
        stored = self._batch.stored if self._batch is not None else ""
        return stored or f"{self._server} has it, and does not tell whether anybody subscribes"

    def close(self) -> None:
        """End the connection, politely if it works, and the thread. Takes seconds at most."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(4 * _GRACE)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the event loop. Raises RetryableError if its thread has ended."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait((future,), _LIFE).done:
                if not self._thread.is_alive():
                    text = f"{self._server}: the thread of the connection has ended"
                    raise RetryableError(text)  # noqa: TRY301 - the connection is broken
            return future.result()
        except BaseException:
            # What was interrupted may have left the connection in the middle of something.
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
        way = self._way
        self._client.encrypted = way.context is not None
        if self._client.encrypted and not self._client.can_insist:
            raise nats.errors.Error("this version of nats-py can't be told to insist on TLS")
        try:
            await self._client.connect(
                url,
                name=way.name,
                allow_reconnect=False,
                # The time limit is that of all of it, and ours.
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
            raise nats.errors.Error("it closed the connection during the login" + self._hint())
        limit: Any = self._client.max_payload
        if not isinstance(limit, int) or limit < 1:
            raise nats.errors.Error("it says that it takes messages of no size")
        if way.acknowledged:
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType]
                f"{self._inbox}.*",
                cb=self._on_answer,
                pending_msgs_limit=_WAITING_ANSWERS,
                pending_bytes_limit=_WAITING_BYTES,
            )

    def _hint(self) -> str:
        """Say what is likely: with TLS 1.3, that a certificate is refused may not reach us."""
        if self._way.context is None:
            return ""
        if self._way.has_certificate:
            return ": it may not trust our certificate"
        return ": it may want a certificate of ours (certificate-file, key-file)"

    async def _publish(self, messages: Sequence[Outgoing]) -> list[Answer]:
        secrets = self._way.login.secrets
        batch = Batch(self._server, messages, self._loop.create_future(), secrets)
        first, self._sent = self._sent, self._sent + len(messages)
        self._batch = batch
        try:
            await self._limited(self._transfer(batch, first))
        except RetryableError as error:
            # Of several it is not known which one the server ended the connection for.
            error.is_about_message = (
                batch.is_down_to_one
                and self._cause is not None
                and may_be_due_to_message(self._cause)
            )
            batch.settle_rest(error)
        return batch.answers

    async def _transfer(self, batch: Batch, first: int) -> None:
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
            # A flush sends its PING ahead of what is still pending in the client: its PONG tells
            # nothing about that. Whatever was pending has left before the second one.
            while True:
                was_empty = client.pending_data_size == 0
                await client.flush(int(self._way.seconds) + 1)
                if was_empty:
                    break
            batch.settle_rest(None)
        await batch.settled

    async def _named_stream(self, subject: str) -> str:
        found: list[str] = []

        async def ask() -> None:
            question = msgspec.json.encode({"subject": subject})
            reply = await self._client.request(_STREAM_NAMES, question, self._way.seconds)
            found.extend(msgspec.json.decode(reply.data, type=_Streams).streams or ())

        await self._limited(ask())
        return found[0] if found else ""

    async def _limited(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run until it is done, the time limit is over, or the connection has failed."""
        task = self._loop.create_task(coroutine)
        deadline = self._loop.time() + self._way.seconds
        try:
            while not task.done():
                rest = deadline - self._loop.time()
                if rest <= 0:
                    raise TimeoutError  # noqa: TRY301 - explained below like all others
                # A look now and then, for the client may hang in closing before it tells.
                watched: set[asyncio.Future[Any]] = {task, self._failed}
                await asyncio.wait(
                    watched, timeout=min(rest, _LOOK), return_when=asyncio.FIRST_COMPLETED
                )
                if not task.done() and (self._failed.done() or self._client.is_closed):
                    raise self._failed.result() if self._failed.done() else ConnectionResetError  # noqa: TRY301
            task.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever comes
            self._broken = True
            self._cause = error
            # Only this is sure to unblock it, should it wait for a socket that nobody reads.
            self._client.abort()
            task.cancel()
            raise RetryableError(f"{self._server}: {self._reason(error)}") from None

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, (TimeoutError, nats.errors.TimeoutError)):
            return f"no answer within {self._way.seconds:g} seconds"
        return self._client.excess or explained(error, self._way.login.secrets)

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
        """Leave nothing behind in the loop, whatever state the client is in."""
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
    """Make an event loop. Raises OSError if there are no descriptors left."""
    # A loop that fails half-way would complain on stderr: whether it can be made is tried first.
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


def _log(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what goes wrong behind the back of a failed connection, without what a server said."""
    kind = type(context.get("exception")).__name__
    logger.library().getChild("nats").debug("%s: %s", context.get("message"), kind)
