"""`nats://` and `tls://` publish messages to NATS subjects, by core NATS or into JetStream.

Core NATS tells that the server has a batch, not that anybody listens; a stream of JetStream
acknowledges every message, and knows one that comes twice by its id (`Nats-Msg-Id`).
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from ccagent import PRODUCER
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.transports.base import Reached, SinkSettings, Transport
from ccagent.transports.nats.settings import (
    NatsSettings,
    checked,
    is_encrypted,
    read_login,
    scheme_of,
)
from ccagent.transports.nats.subject import subject_of
from ccagent.transports.network import tls_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message
    from ccagent.transports.nats.connection import Connection, Way
    from ccagent.transports.urls import Server

_WINDOW = 1024 * 1024
"""Bytes on their way at once: what a slow line must carry within the time limit."""

_REMEMBERED = 10_000


class NatsTransport(Transport):
    """Publishes to subjects of NATS, or into a stream of JetStream.

    Over one kept connection; what isn't acknowledged is not delivered.
    """

    Settings = NatsSettings

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, NatsSettings)
            else NatsSettings(url=settings.url, format=settings.format)
        )
        self._servers = checked(self._settings)
        self._connection: Connection | None = None
        self._taken: set[str] = set()

    def send(self, messages: Sequence[Message]) -> None:
        """Publish messages; return when the server has them or, with JetStream, has stored them.

        Messages are on their way side by side, so those behind a failed one may be taken. Their
        ids are kept, for a stream recognizes them only for a while (2 minutes by default).
        """
        done = 0
        while done < len(messages):
            try:
                connection = self._connected(messages[done].node)
            except RetryableError as error:
                raise RetryableError(str(error), delivered=done) from None
            done = self._publish(connection, messages, done)

    def reach(self, message: Message) -> Reached:
        """Connect and log in; for JetStream ask which stream takes the subject.

        Raises RetryableError, RejectedError if no stream does.
        """
        connection = self._connected(message.node)
        said = f"{connection.server if len(self._servers) > 1 else 'it'} lets us in"
        if not self._settings.jetstream:
            return Reached(said)
        subject = subject_of(message, self._settings.subject)
        try:
            stream = connection.stream_of(subject)
        except RetryableError as error:
            if "no responders" in str(error):
                raise RejectedError(f"{connection.server}: no JetStream for this user") from None
            return Reached(f"{said}, but not ask whether a stream takes {subject!r}")
        if not stream:
            raise RejectedError(f"{connection.server}: no stream takes the subject {subject!r}")
        return Reached(f"{said}; stream {stream!r} takes the subject {subject!r}")

    def close(self) -> None:
        """Let go of the connection. Nothing is pending on it: `send` has waited for all."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _publish(self, connection: Connection, messages: Sequence[Message], begin: int) -> int:
        """Publish as many messages as may be on their way at once; give the number of the next."""
        from ccagent.transports.nats.batch import Outgoing

        end = _window(messages, begin)
        fresh = [n for n in range(begin, end) if messages[n].id not in self._taken]
        answers = connection.publish(
            [
                Outgoing(subject_of(m, self._settings.subject), m.body, m.id)
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

    def _connected(self, node: str) -> Connection:
        """Give the connection, a new one if there is none. Raises RetryableError."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self.close()
        from ccagent.transports.nats.connection import Connection

        try:
            way = self._way(node)
        except ConfigurationError as error:
            # The file may be replaced at any moment, and be right again the next time.
            raise RetryableError(str(error)) from None
        errors: dict[str, None] = {}
        # In random order, so that the nodes of a cluster spread over the servers.
        for server in random.sample(self._servers, len(self._servers)):
            place = f"{way.scheme}://{server}"
            try:
                addresses = _addresses(server)
            except OSError as error:
                errors[f"{place}: the name does not resolve: {error.strerror}"] = None
                continue
            for address in addresses:
                try:
                    self._connection = Connection(way, server, address)
                except RetryableError as error:
                    errors[str(error)] = None
                except (OSError, RuntimeError) as error:
                    # This machine is short of descriptors or threads.
                    errors[f"{place}: {error}"] = None
                else:
                    self.largest_body = self._connection.largest_body
                    return self._connection
        raise RetryableError("; ".join(errors))

    def _way(self, node: str) -> Way:
        """Read secrets and certificates anew. Raises ConfigurationError."""
        from ccagent.transports.nats.connection import Way

        settings = self._settings
        return Way(
            scheme=scheme_of(settings),
            name=f"{PRODUCER} {node}",
            login=read_login(settings),
            context=tls_context(settings) if is_encrypted(settings) else None,
            has_certificate=bool(settings.certificate_file),
            seconds=settings.time_limit.seconds,
            acknowledged=settings.jetstream,
        )


def _window(messages: Sequence[Message], begin: int) -> int:
    """Give the end of the messages that may be on their way at once: one, or more up to a bound."""
    size, end = len(messages[begin].body), begin + 1
    while end < len(messages) and size + len(messages[end].body) <= _WINDOW:
        size += len(messages[end].body)
        end += 1
    return end


def _addresses(server: Server) -> list[str]:
    """Resolve a name here: asyncio would leave a thread behind that nobody can stop."""
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(0, "not a host name") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
