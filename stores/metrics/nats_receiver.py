"""Receiver of lines over NATS: core subscriptions, and durable consumers of JetStream.

A JetStream message is acknowledged after its values are in the log. A store that was down gets the
missed messages. After a kill it may get messages twice; writing them again changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger, printable
from ccagent.net.nats_login import NatsLogin, read_options, split_nats_servers
from ccagent.net.nats_session import NatsError
from ccagent.net.nats_thread import open_any
from ccagent.stores.metrics.general import LineMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ccagent.net.nats_login import NatsOptions
    from ccagent.net.nats_session import NatsMessage, NatsSession
    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.log_writer import StoreLogError
    from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings


_BATCH = 500
_PULL_SECONDS = 30
_ASK_AGAIN = 35.0
_NANOSECONDS = 10**9
_ACK = b"+ACK"
_MOST_PENDING = 20_000
_ENDED, _NOBODY = {"100", "404", "408"}, "503"
"""Statuses of requests that ended (time, no messages), and of a lost consumer."""


class _Refusal(msgspec.Struct):
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Refusal | None = None


class PullConsumer:
    """Requests messages before the previous batch is used up, and acknowledges stored messages.

    Source: NATS ADR-37 and the JetStream wire API. nats-py's own fetch waits for each batch, and
    costs half as much CPU again per message.
    """

    def __init__(
        self,
        session: NatsSession,
        settings: SubscriptionSettings,
        take: Callable[[NatsMessage], Awaitable[bool]],
        commit: MessageCommit,
    ) -> None:
        """Set the settings. take: writes a message, and returns whether it may be acknowledged.

        The session fails if the consumer or its stream no longer exists.
        """
        self._session = session
        self._client = session.client
        self._settings = settings
        self._take = take
        self._commit = commit
        self._inbox = session.client.new_inbox()
        self._asked = 0
        """Number of requested messages that have not arrived."""
        self._pending: list[str] = []
        """Reply subjects of messages waiting for the log."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Create the consumer if it is missing, and request messages. Raise ConfigurationError."""
        one = self._settings
        wanted = {
            "stream_name": one.stream,
            "config": {
                "durable_name": one.durable,
                "filter_subject": one.subject,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": _PULL_SECONDS * _NANOSECONDS,
                "max_ack_pending": _MOST_PENDING,
            },
        }
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{one.stream}.{one.durable}"
        answer = await self._client.request(
            subject, msgspec.json.encode(wanted), timeout=_PULL_SECONDS
        )
        found = msgspec.json.decode(answer.data, type=_Answer)
        if found.error is not None:
            raise ConfigurationError(
                f"stream {one.stream}, consumer {one.durable}: {found.error.description}"
            )
        await self._session.subscribe(self._inbox, self._on_message, messages=0, size=0)
        await self._ask()

    async def _on_message(self, message: NatsMessage) -> None:
        headers = message.headers
        if headers and "Status" in headers and not message.data:
            self._end_request(headers)
        else:
            self._asked -= 1
            # JetStream delivers an unacknowledged message again.
            if await self._take(message) and message.reply:
                if not self._pending:
                    self._commit.wait(self._committed)
                self._pending.append(message.reply)
        if self._asked < _BATCH:
            await self._ask()

    def _end_request(self, headers: dict[str, str]) -> None:
        """Subtract the rest of an ended request. After an error, delay the next request."""
        status, reason = headers["Status"][:3], headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages", "")
        self._asked -= int(left) if left.isdigit() else self._asked
        if status in _ENDED:
            return
        self._asked = max(self._asked, _BATCH)
        one = self._settings
        if status == _NOBODY or "deleted" in reason.lower():
            name = f"stream {one.stream}, consumer {one.durable}"
            self._session.fail(RetryableError(f"{name}: it no longer exists"))
        else:
            logger.warning(
                "stream %s, consumer %s: %s %s; requesting again in %d s",
                one.stream, one.durable, printable(status), printable(reason), _ASK_AGAIN,
            )  # fmt: skip

    async def _ask(self) -> None:
        if self._client.is_closed:
            return
        self._asked = max(0, self._asked) + _BATCH
        request = {"batch": _BATCH, "expires": _PULL_SECONDS * _NANOSECONDS}
        one = self._settings
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{one.stream}.{one.durable}",
            msgspec.json.encode(request),
            reply=self._inbox,
        )
        if self._timer is not None:
            self._timer.cancel()
        # Repeat the request later, in case a reply was lost.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_ASK_AGAIN, self._ask_again)

    def _ask_again(self) -> None:
        self._timer = None
        if not self._client.is_closed:
            self._asked = 0
            self._task = asyncio.get_running_loop().create_task(self._ask())

    def _committed(self, problem: StoreLogError | None) -> None:
        pending, self._pending = self._pending, []
        if problem is None and not self._client.is_closed:
            self._task = asyncio.get_running_loop().create_task(self._acknowledge(pending))

    async def _acknowledge(self, replies: list[str]) -> None:
        """Send acknowledgements. JetStream delivers unacknowledged messages again."""
        with suppress(OSError, NatsError):
            for reply in replies:
                await self._client.publish(reply, _ACK)


_CHECK_EVERY, _ANSWER_WITHIN = 20.0, 30.0
"""Seconds between two checks of the connection, and time limit of a check."""

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_LONGEST_SUBJECT = 200
_WAITING_BYTES = 256 << 20


class NatsReceiver:
    """Keeps a connection to a server, and writes received messages."""

    def __init__(
        self, settings: StoreNatsSettings, ingest: LineIngest, commit: MessageCommit
    ) -> None:
        """Set the settings. Raise ConfigurationError."""
        self._settings = settings
        read_client(settings)
        self._ingest = ingest
        self._commit = commit
        self.is_connected = False

    async def run(self) -> None:
        """Receive until cancelled. Connect again if the connection is lost."""
        wait = _SHORTEST_WAIT
        while True:
            session: NatsSession | None = None
            try:
                session = await self._connect()
                await self._subscribe_all(session)
                logger.info("%s: connected", session.place)
                self.is_connected, wait = True, _SHORTEST_WAIT
                while True:
                    await session.wait(_CHECK_EVERY)
                    await session.run_limited(session.flush(_ANSWER_WITHIN), _ANSWER_WITHIN)
            except ConfigurationError as error:
                problem = printable(f"nats {self._settings.url}: {error}")
            except RetryableError as error:
                problem = printable(str(error))
            finally:
                self.is_connected = False
                if session is not None:
                    session.abort()
            logger.warning("%s; retrying in %d s", problem, wait, key=problem)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _connect(self) -> NatsSession:
        """Return a session with any server. Raise ConfigurationError, RetryableError."""
        client, options = read_client(self._settings)
        return await open_any(client, options, _complain)

    async def _subscribe_all(self, session: NatsSession) -> None:
        for one in self._settings.subscriptions:
            if one.stream:
                take = functools.partial(self._take, one)
                consumer = PullConsumer(session, one, take, self._commit)
                await session.run_limited(consumer.start())
            else:
                await session.run_limited(self._subscribe(session, one))
        await session.run_limited(session.flush())

    async def _subscribe(self, session: NatsSession, one: SubscriptionSettings) -> None:
        async def take(message: NatsMessage) -> None:
            await self._take(one, message)
            self._commit.wait(_ignore)

        await session.subscribe(one.subject, take, queue=one.queue, size=_WAITING_BYTES)

    async def _take(self, one: SubscriptionSettings, message: NatsMessage) -> bool:
        """Write the lines of a message. Return whether it may be acknowledged after a commit."""
        sender = f"nats {message.subject}"
        result = self._ingest.write_known(message.data, one.cluster, sender)
        if result is None:
            result = LineMessage(one.cluster, sender)
            await self._ingest.write_in_turns(message.data, result)
        if result.bad_count:
            first = result.bad[0]
            logger.warning(
                "nats %s: %d bad lines; line %d: %s",
                printable(message.subject)[:_LONGEST_SUBJECT], result.bad_count, first.number,
                first.reason, key="nats bad lines",
            )  # fmt: skip
        return not result.unkept


def _complain(session: NatsSession, error: Exception) -> bool:
    """Log an error. Errors that end the session close it in addition."""
    logger.warning("nats: %s", session.explain(error), key="nats error")
    return True


def _ignore(problem: StoreLogError | None) -> None:
    """Do nothing: messages of core NATS have no acknowledgement."""
    del problem


def read_client(settings: StoreNatsSettings) -> tuple[StoreNatsSettings, NatsOptions]:
    """Return settings with complete URLs, and the options of a session with the secrets.

    The reference accepts blanks between URLs, and an address without a scheme. Raise
    ConfigurationError.
    """
    url = "".join(settings.url.split())
    client = structs.replace(settings, url=url if "://" in url else f"nats://{url}")
    split_nats_servers(client)
    options = read_options(client, "ccagent-store", client.time_limit.seconds)
    if client.password and not options.login.secrets:
        login = NatsLogin(user=client.user, password=client.password)
        options = options._replace(login=login)
    return client, options
