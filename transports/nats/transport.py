"""The transport `nats://` and `tls://`: messages to subjects, by core NATS or into JetStream.

Core NATS only confirms that the server has a batch, not that it has a subscriber. A JetStream
stream acknowledges every message, and recognises a repetition by its id (`Nats-Msg-Id`).
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from ccagent import PRODUCER
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.net.network_errors import explain_network_error
from ccagent.net.tls import make_tls_context
from ccagent.transports.base import ProbeResult, Transport
from ccagent.transports.nats.settings import (
    NatsSettings,
    check_settings,
    get_scheme,
    is_encrypted,
    read_login,
)
from ccagent.transports.nats.subject import fill_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.net.urls import Server
    from ccagent.records.message import Message
    from ccagent.transports.nats.connection import NatsConnection, NatsOptions

_WINDOW = 1024 * 1024
"""Maximum bytes in flight: a slow network must transfer them within the time limit."""

_REMEMBERED = 10_000


class NatsTransport(Transport):
    """Publishes to subjects of NATS, or into a stream of JetStream, over one kept connection.

    A message that is not acknowledged counts as not delivered.
    """

    Settings = NatsSettings

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._servers = check_settings(self._settings)
        self._connection: NatsConnection | None = None
        self._taken: set[str] = set()

    def send(self, messages: Sequence[Message]) -> None:
        """Publish messages. Return when the server has them or, with JetStream, has stored them.

        Many messages are in flight at once: messages after a failed one may be accepted. Their ids
        are kept, because a stream recognises a repetition only for a limited time (2 minutes by
        default).
        """
        done = 0
        while done < len(messages):
            try:
                connection = self._get_connection(messages[done].node)
            except RetryableError as error:
                raise RetryableError(str(error), delivered=done) from error
            done = self._publish(connection, messages, done)

    def probe(self, message: Message) -> ProbeResult:
        """Connect and log in; with JetStream, look up the stream of the subject.

        Raise RetryableError, or RejectedError if the subject has no stream.
        """
        connection = self._get_connection(message.node)
        text = f"{connection.server if len(self._servers) > 1 else 'it'} accepts the login"
        if not self._settings.jetstream:
            return ProbeResult(text)
        subject = fill_subject(message, self._settings.subject)
        try:
            stream = connection.find_stream(subject)
        except RetryableError as error:
            if "no responders" in str(error):
                raise RejectedError(f"{connection.server}: no JetStream for this user") from error
            return ProbeResult(f"{text}, but not the question which stream takes {subject!r}")
        if not stream:
            raise RejectedError(f"{connection.server}: no stream takes the subject {subject!r}")
        return ProbeResult(f"{text}; stream {stream!r} takes the subject {subject!r}")

    def close(self) -> None:
        """Close the connection. No answer is pending: `send` has waited for all answers."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _publish(self, connection: NatsConnection, messages: Sequence[Message], begin: int) -> int:
        """Publish the messages that may be in flight at once. Return the number of the next."""
        from ccagent.transports.nats.batch import Outgoing

        end = _find_window(messages, begin)
        fresh = [n for n in range(begin, end) if messages[n].id not in self._taken]
        answers = connection.publish(
            [
                Outgoing(fill_subject(m, self._settings.subject), m.body, m.id)
                for m in (messages[n] for n in fresh)
            ]
        )
        refused = {n: error for n, error in zip(fresh, answers, strict=True) if error is not None}
        delivered = min(refused, default=end)
        self._taken.difference_update(message.id for message in messages[begin:delivered])
        if not refused:
            self.answer = connection.answer
            return end
        self._taken.update(messages[n].id for n in fresh if n > delivered and n not in refused)
        self._taken.discard("")
        if len(self._taken) > _REMEMBERED:
            self._taken.clear()
        if not connection.is_open:
            self.close()
        error = refused[delivered]
        error.delivered = delivered
        raise error

    def _get_connection(self, node: str) -> NatsConnection:
        """Return the connection. Open one if needed. Raise RetryableError."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self.close()
        from ccagent.transports.nats.connection import NatsConnection

        try:
            way = self._options(node)
        except ConfigurationError as error:
            # The file may be valid at the next attempt.
            raise RetryableError(str(error)) from error
        errors: dict[str, None] = {}
        # In random order, to distribute the nodes of a cluster over the servers.
        for server in random.sample(self._servers, len(self._servers)):
            place = f"{way.scheme}://{server}"
            try:
                addresses = _resolve(server)
            except (OSError, UnicodeError) as error:
                errors[f"{place}: {explain_network_error(error, 0) or error}"] = None
                continue
            for address in addresses:
                try:
                    self._connection = NatsConnection(way, server, address)
                except RetryableError as error:
                    errors[str(error)] = None
                except (OSError, RuntimeError) as error:
                    # This machine has too few descriptors or threads.
                    errors[f"{place}: {error}"] = None
                else:
                    self.largest_body = self._connection.largest_body
                    return self._connection
        raise RetryableError("; ".join(errors))

    def _options(self, node: str) -> NatsOptions:
        """Read secrets and certificates again. Raise ConfigurationError."""
        from ccagent.transports.nats.connection import NatsOptions

        settings = self._settings
        return NatsOptions(
            scheme=get_scheme(settings),
            name=f"{PRODUCER} {node}",
            login=read_login(settings),
            context=make_tls_context(settings) if is_encrypted(settings) else None,
            has_certificate=bool(settings.certificate_file),
            seconds=settings.time_limit.seconds,
            acknowledged=settings.jetstream,
        )


def _find_window(messages: Sequence[Message], begin: int) -> int:
    """Return the end of the messages that may be in flight at once; at least one."""
    size, end = len(messages[begin].body), begin + 1
    while end < len(messages) and size + len(messages[end].body) <= _WINDOW:
        size += len(messages[end].body)
        end += 1
    return end


def _resolve(server: Server) -> list[str]:
    """Return the addresses of a server. Raise OSError, UnicodeError.

    asyncio would resolve the name in a thread that can't be ended.
    """
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
