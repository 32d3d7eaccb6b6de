"""Receiver of lines over NATS: core subscriptions, and durable consumers of JetStream.

A JetStream message is acknowledged after its values are in the log. A store that was down gets the
missed messages. After a kill it may get messages twice; writing them again changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from typing import TYPE_CHECKING

import nats.errors

from ccagent.config.secret import read_secret, secret_text
from ccagent.errors import ConfigurationError
from ccagent.log import logger, printable
from ccagent.stores.metrics.general import LineMessage
from ccagent.stores.metrics.nats_pull import PullConsumer
from ccagent.transports.nats.client import NatsClient, explain_error
from ccagent.transports.nats.login import NatsLogin, parse_credentials

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.log_writer import StoreLogError
    from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings

_SECONDS = 10
_CHECK_EVERY, _ANSWER_WITHIN = 20.0, 30
"""Seconds between two checks of the connection, and time limit of a check."""

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_LONGEST_SUBJECT = 200
_WAITING_MESSAGES, _WAITING_BYTES = 1 << 16, 256 << 20


class NatsReceiver:
    """Keeps a connection to a server, and writes received messages."""

    def __init__(
        self, settings: StoreNatsSettings, ingest: LineIngest, commit: MessageCommit
    ) -> None:
        """Read the secrets. Raise ConfigurationError."""
        self._settings = settings
        self._login = make_login(settings)
        self._context = make_tls(settings)
        self._ingest = ingest
        self._commit = commit
        self.messages = 0
        self.is_connected = False
        self._problem = ""

    async def run(self) -> None:
        """Receive until cancelled. Connect again if the connection is lost."""
        wait = _SHORTEST_WAIT
        while True:
            client, closed = NatsClient(), asyncio.Event()
            problem = self._problem = ""
            try:
                await self._open(client, closed)
                logger.info("nats %s: connected", self._settings.url)
                self.is_connected, wait = True, _SHORTEST_WAIT
                await _watch(client, closed)
                problem = self._problem or "the connection is lost"
            except ConfigurationError as error:
                problem = printable(str(error))
            except (OSError, nats.errors.Error, ValueError) as error:
                problem = explain_error(error, self._login.secrets)
            finally:
                self.is_connected = False
                client.abort()
            logger.warning(
                "nats %s: %s; retrying in %d s", self._settings.url, problem, wait,
                key=f"nats {problem}",
            )  # fmt: skip
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _open(self, client: NatsClient, closed: asyncio.Event) -> None:
        """Connect and subscribe."""

        async def end() -> None:
            closed.set()

        async def complain(error: Exception) -> None:
            text = explain_error(error, self._login.secrets)
            logger.warning("nats: %s", text, key="nats error")

        def lose(problem: str) -> None:
            self._problem = printable(problem)
            closed.set()

        client.encrypted = self._context is not None
        await client.connect(
            [url.strip() for url in self._settings.url.split(",")],
            name="ccagent-store",
            allow_reconnect=False,
            connect_timeout=_SECONDS,
            tls=self._context,
            error_cb=complain,
            closed_cb=end,
            **self._login.options(),
        )
        for one in self._settings.subscriptions:
            if one.stream:
                take = functools.partial(self._take, one)
                await PullConsumer(client, one, take, self._commit, lose).start()
            else:
                await self._subscribe(client, one)
        await client.flush(_SECONDS)

    async def _subscribe(self, client: NatsClient, one: SubscriptionSettings) -> None:
        async def take(message: Msg) -> None:
            await self._take(one, message)
            self._commit.wait(_ignore)

        await client.subscribe(  # pyright: ignore[reportUnknownMemberType]
            one.subject,
            queue=one.queue,
            cb=take,
            pending_msgs_limit=_WAITING_MESSAGES,
            pending_bytes_limit=_WAITING_BYTES,
        )

    async def _take(self, one: SubscriptionSettings, message: Msg) -> bool:
        """Write the lines of a message. Return whether it may be acknowledged after a commit."""
        self.messages += 1
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


async def _watch(client: NatsClient, closed: asyncio.Event) -> None:
    """Return when the connection is lost, even if nats-py does not notice it.

    Raise nats.errors.Error if the server does not answer a check.
    """
    while not closed.is_set():
        try:
            await asyncio.wait_for(closed.wait(), _CHECK_EVERY)
        except TimeoutError:
            await client.flush(_ANSWER_WITHIN)


def _ignore(problem: StoreLogError | None) -> None:
    """Do nothing: messages of core NATS have no acknowledgement."""
    del problem


def make_login(settings: StoreNatsSettings) -> NatsLogin:
    """Return user and secrets. Raise ConfigurationError."""
    if settings.creds_file:
        found = parse_credentials(secret_text(settings.creds_file))
        if found is None:
            raise ConfigurationError(f"nats.creds-file: {settings.creds_file}: no JWT and seed")
        return found
    password = read_secret(settings.password_file) if settings.password_file else settings.password
    return NatsLogin(user=settings.user, password=password)


def make_tls(settings: StoreNatsSettings) -> ssl.SSLContext | None:
    """Return the TLS context for a `tls://` URL, else None. Raise ConfigurationError."""
    if not settings.url.startswith("tls://"):
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"nats.ca-file: {settings.ca_file}: {error}") from error
