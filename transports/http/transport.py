"""The transport `http://` and `https://`: an envelope a request, lines together.

An envelope is posted to `URL/[prefix.]<kind>`, as by Sonar; lines are posted to the URL itself, as
ClusterCockpit's store expects them. Where the URL has `{kind}`, `{cluster}` or `{node}`, these are
replaced and nothing is appended.
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
from ccagent.transports.base import ProbeResult, SinkSettings, Transport
from ccagent.transports.http.answers import check_status, parse_date
from ccagent.transports.http.connection import HttpConnection, is_broken_off
from ccagent.transports.http.posts import group_posts
from ccagent.transports.http.settings import (
    HttpSettings,
    check_settings,
    server_of_url,
    split_proxy,
)
from ccagent.transports.network import make_tls_context
from ccagent.transports.peer_text import hide_secrets
from ccagent.transports.templates import fill_template, get_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message

_LOGIN_REFUSED = frozenset({401, 403, 407})
_NO_SERVER = frozenset({500, 502, 503, 504})
_HALF_A_SECOND = 0.5
"""The mean error of a Date, which has whole seconds."""
_SMALLEST_LIMIT = 16 * 1024
"""Bytes below which a refusal is not due to the size."""

_CONTENT_TYPES = {"sonar": "application/json", "line": "text/plain; charset=utf-8"}


class HttpTransport(Transport):
    """Posts over one kept connection: an envelope a request, lines of many messages together.

    Only 2xx is success; redirects are not followed.
    """

    Settings = HttpSettings

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, HttpSettings)
            else HttpSettings(url=settings.url, format=settings.format)
        )
        self._target = check_settings(self._settings)
        self._connection = HttpConnection(
            server_of_url(self._target),
            make_tls_context(self._settings) if self._target.scheme == "https" else None,
            self._settings.time_limit.seconds,
            split_proxy(self._settings),
        )
        self._limit = self.largest_body = self._settings.largest_body

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages: an envelope a request, lines together up to `max-payload`."""
        self._send(messages, 0, len(messages))

    def _send(self, messages: Sequence[Message], begin: int, end: int) -> None:
        """Post some of the messages; a refused group is split until one message is refused."""
        first = begin
        for post in group_posts(messages[begin:end], self._limit):
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
        """Lower the limit after a body that was too large. Return whether it can be split."""
        limit = len(body) // 2
        if message.format != "line" or body.count(b"\n") < 2 or limit < _SMALLEST_LIMIT:
            return False
        self._limit = limit
        return True

    def probe(self, message: Message) -> ProbeResult:
        """Send a HEAD request to the URL of a message, with its headers.

        Any answer of the server will do, except one that refuses the login (RejectedError) and one
        of a proxy that does not reach its server (RetryableError).
        """
        try:
            headers, secrets = self._build_headers(message)
        except ConfigurationError as error:
            raise RetryableError(str(error)) from error
        before = time.time()
        try:
            answer = self._connection.request_head(self._build_path(message), headers)
        except (HTTPException, OSError, UnicodeError) as error:
            text = f"{self._place}: {self._connection.explain(error, secrets)}"
            raise RetryableError(text) from None  # the cause may repeat a secret
        after = time.time()
        status = f"{answer.status} {responses.get(answer.status, '')}"
        if answer.status in _LOGIN_REFUSED:
            raise RejectedError(f"{self._place}: {status}: the login is refused")
        if answer.status in _NO_SERVER:
            raise RetryableError(f"{self._place}: {status}")
        date = parse_date(answer.date)
        offset = None if date is None else (before + after) / 2 - date - _HALF_A_SECOND
        return ProbeResult(f"it answers HEAD with {status}", offset, (after - before) / 2)

    def _deliver(self, message: Message, body: bytes, delivered: int) -> None:
        """Post one body to the URL and with the headers of `message`."""
        try:
            headers, secrets = self._build_headers(message)
        except ConfigurationError as error:
            # The file may be right again at the next attempt.
            raise RetryableError(str(error), delivered=delivered) from error
        if self._settings.gzip:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, compresslevel=6, mtime=0)
        try:
            answer = self._connection.post(self._build_path(message), body, headers)
        except (HTTPException, OSError, UnicodeError) as error:
            raise RetryableError(
                f"{self._place}: {self._connection.explain(error, secrets)}",
                delivered=delivered,
                is_about_message=self._connection.is_sent and is_broken_off(error),
            ) from None  # the cause may repeat a secret
        said = f"{answer.status} {responses.get(answer.status, '')}"
        text = answer.body.decode("utf-8", "replace")
        if text:
            own = (message.cluster, message.node, message.kind, message.prefix)
            said += f": {hide_secrets(text, secrets, own)}"
        check_status(
            answer.status,
            f"{self._place}: {said}",
            text,
            retry_after=answer.retry_after,
            has_own_url=self._has_own_url(message),
            delivered=delivered,
        )
        self.answer = said

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def _place(self) -> str:
        """The URL without its query, which may hold a secret."""
        return f"{self._target.scheme}://{self._target.netloc}{self._target.path}"

    def _build_headers(self, message: Message) -> tuple[dict[str, str], list[str]]:
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
            # The cause shows the token.
            raise ConfigurationError(f"{settings.token_file}: a token is ASCII") from None
        return headers, secrets

    def _has_own_url(self, message: Message) -> bool:
        """Return whether the URL depends on the kind of a message."""
        template = f"{self._target.path}?{self._target.query}"
        return "{kind}" in template or (message.format != "line" and "{" not in template)

    def _build_path(self, message: Message) -> str:
        """Return path and query of the URL for a message."""
        path = self._target.path or "/"
        query = f"?{self._target.query}" if self._target.query else ""
        kind = f"{message.prefix}.{message.kind}" if message.prefix else message.kind
        whole = path + query
        if "{" in whole:
            values = get_values(message) | {"kind": kind}
            quoted = {name: quote(value, safe="") for name, value in values.items()}
            return fill_template(whole, quoted)
        if message.format == "line":
            return whole
        return f"{path.rstrip('/')}/{quote(kind, safe='')}{query}"


def _may_be_due_to_one(error: TransportError) -> bool:
    """Return whether a refusal of several messages may be due to one of them."""
    return isinstance(error, RejectedError) or (
        isinstance(error, RetryableError) and error.is_about_message
    )
