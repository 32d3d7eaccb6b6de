"""Requests over NATS: the service's side, and that of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import time
from collections import deque
from typing import TYPE_CHECKING

from ccagent.controls.messages import (
    Incoming,
    LineReader,
    encode_line,
    method_of_subject,
    nats_sender,
)
from ccagent.errors import (
    ConfigurationError,
    ControlError,
    EncodingError,
    ProgramError,
    RetryableError,
)
from ccagent.log import logger
from ccagent.net.nats_login import read_options
from ccagent.net.nats_session import (
    NatsError,
    NatsMessage,
    NatsSession,
    PayloadError,
    log_loop_error,
)
from ccagent.net.nats_thread import NatsThread, connect_to_any, open_any
from ccagent.service.signals import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ccagent.controls.local_socket import BoundedCalls
    from ccagent.controls.responder import Responder
    from ccagent.controls.settings import ControlsSettings
    from ccagent.net.nats_login import NatsOptions
    from ccagent.net.signatures import SignatureCheck
    from ccagent.net.urls import Server
    from ccagent.records.line_protocol import Line

_CONNECT_WITHIN = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_CHECK_EVERY = 3600.0
_MOST_DELAYED = 10_000
_MOST_EVENTS = 1000

Outgoing = tuple[str, bytes, dict[str, str] | None, str]
"""Subject, body, headers and reply subject of a message."""


class NatsRequests:
    """Keeps a connection, and answers its requests. All methods belong to the main thread's loop.

    Quick reads are answered in the callback of the subscription: a transfer to another thread costs
    more. All else is answered in a thread.
    """

    def __init__(
        self,
        settings: ControlsSettings,
        responder: Responder,
        signatures: SignatureCheck | None,
        calls: BoundedCalls,
    ) -> None:
        self.replace(settings, responder, signatures)
        self._calls = calls
        self._reader = LineReader()
        self._session: NatsSession | None = None
        self._events: deque[tuple[str, bytes]] = deque(maxlen=_MOST_EVENTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._delayed = 0

    async def run(self) -> None:
        """Answer requests until cancelled. Connect again after a failure."""
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        pause = _FIRST_PAUSE
        while True:
            try:
                session = await self._connect()
                pause = _FIRST_PAUSE
                logger.info("controls: connected to %s, listening on %s", session.place,
                            self.settings.subjects)  # fmt: skip
                await self._send_events()
                while True:
                    await session.wait(_CHECK_EVERY)
            except (ConfigurationError, RetryableError) as error:
                wait = pause * random.uniform(0.5, 1)  # noqa: S311 - no secret
                pause = min(_LONGEST_PAUSE, 2 * pause)
                logger.warning("controls: %s; retrying in %.0f s", error, max(1.0, wait),
                               key="controls connection")  # fmt: skip
            except Exception:  # noqa: BLE001 - nobody foresaw it, and the service goes on
                logger.exception("controls: the connection failed and is made again")
                wait = _LONGEST_PAUSE
            finally:
                ended, self._session = self._session, None
                if ended is not None:
                    await ended.end()
            await asyncio.sleep(wait)

    def replace(
        self,
        settings: ControlsSettings,
        responder: Responder,
        signatures: SignatureCheck | None,
    ) -> None:
        """Apply a configuration with the same connection."""
        self.settings, self.responder, self.signatures = settings, responder, signatures
        seconds = settings.time_limit.seconds
        self._late = f"no answer of the machine within {seconds:g} s"
        self._limit = TimeLimit(seconds, self._late)

    def send_event(self, subject: str, body: bytes) -> None:
        """Send an event message, if necessary after the next connection."""
        self._events.append((subject, body))
        self._start(self._send_events())

    def take(
        self, subject: str, reply: str, headers: dict[str, str], body: bytes
    ) -> list[Incoming]:
        """Return the requests in a message. headers: names in lower case."""
        key, refusal = "", ""
        if self.signatures is not None:
            try:
                key = self.signatures.signer(subject, headers, body, time.time())
            except ControlError as error:
                refusal = str(error)
        sender = nats_sender(subject, headers, key, trusts_info=self.settings.trust_request_info)
        if refusal and not self.responder.admit_forged(sender, refusal):
            return []
        only = method_of_subject(subject)
        requests: list[Incoming] = []
        for number, line in enumerate(self._reader.read(body)):
            if self.responder.is_for_us(line):
                if refusal and number and not self.responder.admit_forged(sender, refusal):
                    break
                requests.append(Incoming(line, reply, sender, only, refusal))
        return requests

    async def _connect(self) -> NatsSession:
        """Subscribe at the first reachable server. Raise ConfigurationError or RetryableError."""
        options = read_options(
            self.settings, f"control {self.responder.node_name}", _CONNECT_WITHIN
        )
        # A request may arrive before the last subscription.
        self._session = session = await open_any(self.settings, options, self._is_harmless)
        await session.run_limited(self._subscribe(session))
        return session

    async def _subscribe(self, session: NatsSession) -> None:
        for subject in self.settings.subjects:
            await session.subscribe(subject, self._on_message)
        await session.flush()

    def _is_harmless(self, session: NatsSession, error: Exception) -> bool:
        """Return whether an error leaves the session intact."""
        text = str(error).lower()
        if "permissions violation for publish" in text:
            logger.warning("%s: this user may not publish answers: grant it _INBOX.>",
                           session.place)  # fmt: skip
        elif "slow consumer" in text:
            logger.warning("controls: too many requests wait: some are dropped")
        else:
            return False
        return True

    async def _on_message(self, message: NatsMessage) -> None:
        try:
            given = message.headers
            headers = {name.lower(): text for name, text in given.items()} if given else {}
            for request in self.take(message.subject, message.reply, headers, message.data):
                answer = await self._answer(request)
                if request.reply:
                    await self._post(request, answer)
        except Exception:  # noqa: BLE001 - nobody foresaw it, and the service goes on
            logger.exception("controls: a message failed", key="controls message failed")

    async def _answer(self, request: Incoming) -> Line:
        line, responder = request.line, self.responder
        if request.refusal:
            return responder.reply(line, "ERROR", request.refusal)
        seconds = self.settings.time_limit.seconds
        is_quick = responder.is_quick(line, request.sender, request.only)
        try:
            if is_quick:
                with self._limit:
                    return responder.answer(line, request.sender, request.only)
            return await self._calls.call(
                lambda: responder.answer(line, request.sender, request.only), seconds
            )
        except (TimeoutError, ProgramError) as error:
            if is_quick:
                responder.note_hanging(line)
            logger.error("controls: %s: no answer within %g s", line.measurement, seconds,
                         key="controls no answer")  # fmt: skip
            return responder.reply(line, "ERROR", str(error) or self._late)

    async def _post(self, request: Incoming, answer: Line) -> None:
        """Publish an answer, with a delay if all nodes answer the same request."""
        spread = self.settings.spread.seconds
        if not spread or not self.responder.is_for_all(request.line):
            await self._publish(request.reply, answer)
        elif self._delayed < _MOST_DELAYED:
            self._delayed += 1
            wait = random.uniform(0, spread)  # noqa: S311 - no secret
            loop = asyncio.get_running_loop()
            loop.call_later(wait, self._post_delayed, request.reply, answer)

    def _post_delayed(self, reply: str, answer: Line) -> None:
        self._delayed -= 1
        self._start(self._publish(reply, answer))

    async def _publish(self, reply: str, answer: Line) -> None:
        session = self._session
        if session is None:
            return  # the connection of the sender is closed
        try:
            await session.client.publish(reply, encode_line(answer).encode())
        except PayloadError:
            text = f"the answer is larger than the server takes ({session.max_payload} bytes)"
            shorter = self.responder.reply(answer, "ERROR", text)
            with contextlib.suppress(EncodingError, NatsError, OSError):
                await session.client.publish(reply, encode_line(shorter).encode())
        except (EncodingError, NatsError, OSError) as error:
            logger.debug("answer: %s", type(error).__name__)

    async def _send_events(self) -> None:
        while self._events and self._session is not None and self._session.is_open:
            subject, body = self._events.popleft()
            with contextlib.suppress(NatsError, OSError):
                await self._session.client.publish(subject, body)

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class RequestConnection(NatsThread):
    """A client's connection: messages, and their answers in an inbox."""

    def __init__(self, options: NatsOptions, place: str, server: Server, address: str) -> None:
        """Connect to one of the server's addresses and log in. Raise RetryableError."""
        self._received: queue.SimpleQueue[NatsMessage] = queue.SimpleQueue()
        self.inbox = ""
        super().__init__(options, place, server, address)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Send messages. Raise RetryableError if the connection fails."""
        self._wait(self.session.run_limited(self._publish(messages)))

    def receive(self, seconds: float) -> NatsMessage | None:
        """Return the next message; None after the time limit."""
        with contextlib.suppress(queue.Empty):
            return self._received.get(timeout=seconds)
        return None

    async def _prepare(self) -> None:
        self.inbox = self.session.client.new_inbox()
        await self.session.subscribe(f"{self.inbox}.>", self._on_message)
        await self.session.flush()

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        for subject, body, headers, reply in messages:
            await self.session.client.publish(subject, body, reply, headers)
        await self.session.flush()

    async def _on_message(self, message: NatsMessage) -> None:
        self._received.put(message)


def connect_client(settings: ControlsSettings, name: str, seconds: float) -> RequestConnection:
    """Connect to the first reachable server, in random order. Raise RetryableError."""
    return connect_to_any(settings, name, seconds, RequestConnection)
