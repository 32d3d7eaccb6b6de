"""The transport `nats://` and `tls://`: messages to subjects, by core NATS or into JetStream.

Core NATS only confirms that the server has a batch, not that it has a subscriber. A JetStream
stream acknowledges every message, and recognises a repetition by its id (`Nats-Msg-Id`).
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ccagent import PRODUCER
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.net.nats_login import check_client
from ccagent.transports.base import (
    PLACEHOLDERS,
    NetworkSinkSettings,
    ProbeResult,
    Transport,
    check_template,
    fill_template,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.net.urls import Server
    from ccagent.records.message import Message
    from ccagent.transports.nats_connection import NatsConnection

_DEFAULT = "{prefix}.{cluster}.{kind}"
_TOKEN = re.compile(r"[\w!#$%&'+,/:;=?@^`|~-]+", re.ASCII)

_WINDOW = 1024 * 1024
"""Maximum bytes in flight: a slow network must transfer them within the time limit."""

_REMEMBERED = 10_000


def fill_subject(message: Message, template: str) -> str:
    """Return the subject of a message. Dots in names separate tokens. Empty tokens are omitted."""
    return _make_subject(
        template or _DEFAULT, message.prefix, message.cluster, message.node, message.kind
    )


@lru_cache(maxsize=1000)
def _make_subject(template: str, *values: str) -> str:
    filled = fill_template(
        template, dict(zip(PLACEHOLDERS, map(_clean_value, values), strict=True))
    )
    return ".".join(filter(None, filled.split(".")))


def _clean_value(value: str) -> str:
    """Return a value with `_` in place of characters with a meaning in subjects."""
    if value.isascii() and value.replace("-", "").replace(".", "").isalnum():
        return value
    return "".join("_" if c in " *>" or not c.isprintable() else c for c in value)


class NatsSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `nats://` or `tls://`."""

    jetstream: Annotated[
        bool, Meta(description="publish into a stream, which acknowledges every message")
    ] = False
    subject: Annotated[
        str,
        Meta(
            description="subject with {cluster}, {node}, {kind} and {prefix};"
            " empty: [prefix.]<cluster>.<kind>"
        ),
    ] = ""
    token_file: Annotated[str, Meta(description="file with a token")] = ""
    nkey_file: Annotated[str, Meta(description="file with the seed of a user's nkey")] = ""
    creds_file: Annotated[str, Meta(description="file with a user's JWT and seed (.creds)")] = ""


def check_settings(settings: NatsSettings) -> list[Server]:
    """Check the keys and return the servers. Raise ConfigurationError."""
    if settings.subject:
        example = check_template("subject", settings.subject)
        if settings.subject == "{prefix}":
            raise ConfigurationError("subject: {prefix} alone may be empty")
        if not all(map(_TOKEN.fullmatch, example.split("."))):
            raise ConfigurationError(
                "subject: tokens with dots between them, no spaces, no wildcards"
            )
    return check_client(settings)


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
        """Publish the messages that may be in flight at once, at least one.

        Return the number of the next message.
        """
        from ccagent.transports.nats_connection import Outgoing

        size, end = len(messages[begin].body), begin + 1
        while end < len(messages) and size + len(messages[end].body) <= _WINDOW:
            size += len(messages[end].body)
            end += 1
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
            if self.is_one_shot:  # `ccagent sinks test` shows it
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
        from ccagent.net.nats_thread import connect_to_any
        from ccagent.transports.nats_connection import NatsConnection

        settings = self._settings
        self._connection = connect_to_any(
            settings,
            f"{PRODUCER} {node}",
            settings.time_limit.seconds,
            partial(NatsConnection, is_acknowledged=settings.jetstream),
        )
        self.largest_body = self._connection.largest_body
        return self._connection
