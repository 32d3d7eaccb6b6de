"""Receiver of lines over NATS: core subscriptions, and durable consumers of JetStream.

A JetStream message is acknowledged after its values are in the log. A store that was down gets the
missed messages. After a kill it may get messages twice; writing them again changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
from typing import TYPE_CHECKING

from ccagent.config.secret import read_secret, secret_text
from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger, printable
from ccagent.net.nats_login import NatsLogin, NatsOptions, parse_credentials
from ccagent.net.nats_session import NatsSession
from ccagent.stores.metrics.general import LineMessage
from ccagent.stores.metrics.nats_pull import PullConsumer

if TYPE_CHECKING:
    from ccagent.net.nats_session import NatsMessage
    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.log_writer import StoreLogError
    from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings

_SECONDS = 10.0
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
        """Read the secrets. Raise ConfigurationError."""
        self._settings = settings
        self._login = make_login(settings)
        self._context = make_tls(settings)
        self._ingest = ingest
        self._commit = commit
        self.messages = 0
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
        """Return a session with the first server that answers, in random order.

        Raise RetryableError.
        """
        options = NatsOptions("ccagent-store", self._login, self._context, False, _SECONDS)
        urls = [url.strip() for url in self._settings.url.split(",")]
        errors: dict[str, None] = {}
        for url in random.sample(urls, len(urls)):
            session = NatsSession(options, f"nats {url}", asyncio.get_running_loop(), _complain)
            try:
                await session.open(url)
            except RetryableError as error:
                errors[str(error)] = None
            else:
                return session
        raise RetryableError("; ".join(errors))

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


def _complain(session: NatsSession, error: Exception) -> bool:
    """Log an error. Errors that end the session close it in addition."""
    logger.warning("nats: %s", session.explain(error), key="nats error")
    return True


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
