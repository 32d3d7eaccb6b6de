"""`http://` and `https://` post messages: envelopes one a request, points as lines.

An envelope goes to `URL/[prefix.]<kind>`, as Sonar sends it; points go to the URL itself, as
ClusterCockpit's store wants it. `{kind}`, `{cluster}` and `{node}` in the URL are replaced,
and then nothing is appended.
"""

from __future__ import annotations

import base64
import gzip
import time
from http.client import HTTPException, responses
from typing import TYPE_CHECKING
from urllib.parse import quote

from ccagent import PRODUCER, __version__
from ccagent.config.secret import read_secret
from ccagent.errors import (
    ConfigurationError,
    RejectedError,
    RetryableError,
    TooLargeError,
    TransportError,
)
from ccagent.transports.base import Reached, SinkSettings, Transport
from ccagent.transports.http.answers import check_status, date_of
from ccagent.transports.http.connection import Connection, explained, is_broken_off
from ccagent.transports.http.posts import posts
from ccagent.transports.http.settings import HttpSettings, checked, proxy_of, server_of
from ccagent.transports.network import tls_context
from ccagent.transports.peer_text import peer_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message

_LOGIN = frozenset({401, 403, 407})
_NOBODY_BEHIND = frozenset({500, 502, 503, 504})
_HALF_A_SECOND = 0.5
"""A Date has whole seconds."""
_SMALLEST_LIMIT = 16 * 1024
"""Bytes below which no server's limit is sought: it refuses something else."""

_CONTENT_TYPES = {"sonar": "application/json", "line": "text/plain; charset=utf-8"}


class HttpTransport(Transport):
    """Posts to a server: envelopes one a request, points of many messages together.

    Over one kept connection; only 2xx is success; redirects are not followed.
    """

    Settings = HttpSettings

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, HttpSettings)
            else HttpSettings(url=settings.url, format=settings.format)
        )
        self._target = checked(self._settings)
        self._connection = Connection(
            server_of(self._target),
            tls_context(self._settings) if self._target.scheme == "https" else None,
            self._settings.time_limit.seconds,
            proxy_of(self._settings),
        )
        self._limit = self.largest_body = self._settings.largest_body

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages: envelopes one a request, points together up to `max-payload`."""
        self._send(messages, 0, len(messages))

    def _send(self, messages: Sequence[Message], begin: int, end: int) -> None:
        """Post some of the messages; what is refused together is split until one is to blame."""
        first = begin
        for post in posts(messages[begin:end], self._limit):
            message, rest = messages[first], first + post.messages
            try:
                self._deliver(message, post.body, first)
            except TransportError as error:
                if isinstance(error, TooLargeError) and self._lower_limit(message, post.body):
                    return self._send(messages, first, end)
                if post.messages <= 1 or not _may_be_due_to_one(error):
                    raise
                middle = first + post.messages // 2
                self._send(messages, first, middle)
                self._send(messages, middle, rest)
            first = rest
        return None

    def _lower_limit(self, message: Message, body: bytes) -> bool:
        """Learn from a body that was too large; return whether smaller ones can be made of it."""
        limit = len(body) // 2
        if message.format != "line" or body.count(b"\n") < 2 or limit < _SMALLEST_LIMIT:
            return False
        self._limit = limit
        return True

    def reach(self, message: Message) -> Reached:
        """Ask with HEAD where a message would go, with its headers.

        A server that doesn't know HEAD there is reached all the same; one that wants another
        login, or has none behind it, is not. Raises RetryableError or RejectedError.
        """
        try:
            headers, secrets = self._headers(message)
        except ConfigurationError as error:
            raise RetryableError(str(error)) from None
        before = time.time()
        try:
            answer = self._connection.ask(self._path(message), headers)
        except (HTTPException, OSError, UnicodeError) as error:
            text = f"{self._place}: {explained(error, secrets)}"
            raise RetryableError(text) from None
        after = time.time()
        said = f"{answer.status} {responses.get(answer.status, '')}"
        if answer.status in _LOGIN:
            raise RejectedError(f"{self._place}: {said}: the login is refused")
        if answer.status in _NOBODY_BEHIND:
            raise RetryableError(f"{self._place}: {said}")
        date = date_of(answer.date)
        ahead = None if date is None else (before + after) / 2 - date - _HALF_A_SECOND
        return Reached(f"it answers HEAD with {said}", ahead, (after - before) / 2)

    def _deliver(self, message: Message, body: bytes, delivered: int) -> None:
        """Post one body, to the place and with the headers of `message`."""
        try:
            headers, secrets = self._headers(message)
        except ConfigurationError as error:
            # The file may be replaced at any moment, and be right again the next time.
            raise RetryableError(str(error), delivered=delivered) from None
        if self._settings.gzip:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, compresslevel=6, mtime=0)
        try:
            answer = self._connection.post(self._path(message), body, headers)
        except (HTTPException, OSError, UnicodeError) as error:
            raise RetryableError(
                f"{self._place}: {explained(error, secrets)}",
                delivered=delivered,
                is_about_message=self._connection.is_sent and is_broken_off(error),
            ) from None
        said = f"{answer.status} {responses.get(answer.status, '')}"
        text = answer.body.decode("utf-8", "replace")
        if text:
            own = (message.cluster, message.node, message.kind, message.prefix)
            said += f": {peer_text(text, secrets, own)}"
        check_status(
            answer.status,
            f"{self._place}: {said}",
            text,
            retry_after=answer.retry_after,
            is_own_place=self._has_own_place(message),
            delivered=delivered,
        )
        self.answer = said

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def _place(self) -> str:
        """The URL without what could be secret in it."""
        return f"{self._target.scheme}://{self._target.netloc}{self._target.path}"

    def _headers(self, message: Message) -> tuple[dict[str, str], list[str]]:
        """Return the headers of a request, and the secrets in them. Raises ConfigurationError."""
        secrets: list[str] = []
        headers = {
            "Content-Type": _CONTENT_TYPES[message.format],
            "User-Agent": f"{PRODUCER}/{__version__}",
        }
        settings = self._settings
        try:
            if settings.token_file:
                token = read_secret(settings.token_file)
                headers["Authorization"] = "Bearer " + token.encode("ascii").decode("ascii")
                secrets = [token]
            elif settings.password_file:
                user = settings.user or message.cluster
                password = read_secret(settings.password_file)
                credentials = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
                headers["Authorization"] = f"Basic {credentials}"
                secrets = [password, credentials]
        except UnicodeEncodeError:
            raise ConfigurationError(f"{settings.token_file}: a token is ASCII") from None
        return headers, secrets

    def _has_own_place(self, message: Message) -> bool:
        """Return whether the URL depends on the kind of a message."""
        template = f"{self._target.path}?{self._target.query}"
        return "{kind}" in template or (message.format != "line" and "{" not in template)

    def _path(self, message: Message) -> str:
        path = self._target.path or "/"
        query = f"?{self._target.query}" if self._target.query else ""
        kind = f"{message.prefix}.{message.kind}" if message.prefix else message.kind
        whole = path + query
        if "{" in whole:
            for name, value in (
                ("{kind}", kind),
                ("{cluster}", message.cluster),
                ("{node}", message.node),
            ):
                whole = whole.replace(name, quote(value, safe=""))
            return whole
        if message.format == "line":
            return whole
        return f"{path.rstrip('/')}/{quote(kind, safe='')}{query}"


def _may_be_due_to_one(error: TransportError) -> bool:
    """Return whether a refusal of several messages may be due to one of them."""
    return isinstance(error, RejectedError) or (
        isinstance(error, RetryableError) and error.is_about_message
    )
