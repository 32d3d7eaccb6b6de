"""`http://` and `https://` post messages: envelopes one a request, points as lines.

An envelope goes to `URL/[prefix.]<kind>`, as Sonar sends it; points go to the URL itself, as
ClusterCockpit's store wants it. `{kind}`, `{cluster}` and `{node}` in the URL are replaced,
and then nothing is appended.
"""

from __future__ import annotations

import base64
import gzip
import time
from email.utils import parsedate_to_datetime
from http.client import HTTPException, responses
from typing import TYPE_CHECKING
from urllib.parse import quote

from ccagent import PRODUCER, __version__
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.log import printable
from ccagent.secret import read_secret
from ccagent.transports.base import Reached, SinkSettings, Transport
from ccagent.transports.http.connection import Connection, explained
from ccagent.transports.http.posts import posts
from ccagent.transports.http.settings import HttpSettings, checked, proxy_of, server_of
from ccagent.transports.network import tls_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.message import Message

_TRY_AGAIN = frozenset({408, 425, 429})
_LOGIN = frozenset({401, 403, 407})
_NOBODY_BEHIND = frozenset({500, 502, 503, 504})
_HALF_A_SECOND = 0.5
"""A Date has whole seconds."""
_LONGEST_NUMBER = 9
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

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages: envelopes one a request, points together up to `max-payload`."""
        delivered = 0
        for post in posts(messages, self._settings.max_payload):
            try:
                self._deliver(messages[delivered], post.body, delivered)
            except RejectedError:
                if post.messages <= 1:
                    raise
                # One of several is refused: each on its own tells which.
                for number in range(delivered, delivered + post.messages):
                    for part in posts(messages[number : number + 1], self._settings.max_payload):
                        self._deliver(messages[number], part.body, number)
            delivered += post.messages

    def reach(self, message: Message) -> Reached:
        """Ask with HEAD where a message would go, with its headers.

        A server that doesn't know HEAD there is reached all the same; one that wants another
        login, or has none behind it, is not. Raises RetryableError or RejectedError.
        """
        try:
            headers = self._headers(message)
        except ConfigurationError as error:
            raise RetryableError(str(error)) from None
        before = time.time()
        try:
            answer = self._connection.ask(self._path(message), headers)
        except (HTTPException, OSError) as error:
            text = f"{self._place}: {_shown(explained(error), headers)}"
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
            headers = self._headers(message)
        except ConfigurationError as error:
            # The file may be replaced at any moment, and be right again the next time.
            raise RetryableError(str(error), delivered=delivered) from None
        if self._settings.gzip:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, compresslevel=6, mtime=0)
        try:
            answer = self._connection.post(self._path(message), body, headers)
        except (HTTPException, OSError) as error:
            text = f"{self._place}: {_shown(explained(error), headers)}"
            raise RetryableError(text, delivered=delivered) from None
        status = answer.status
        said = f"{status} {responses.get(status, '')}"
        if answer.body:
            said += f": {_shown(answer.body.decode('utf-8', 'replace'), headers)}"
        if 200 <= status < 300:
            self.answer = said
            return
        text = f"{self._place}: {said}"
        if status in _TRY_AGAIN or status >= 500:
            after = retry_after(answer.retry_after, time.time())
            raise RetryableError(text, delivered=delivered, after=after)
        raise RejectedError(text, delivered=delivered)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def _place(self) -> str:
        """The URL without what could be secret in it."""
        return f"{self._target.scheme}://{self._target.netloc}{self._target.path}"

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {
            "Content-Type": _CONTENT_TYPES[message.format],
            "User-Agent": f"{PRODUCER}/{__version__}",
        }
        settings = self._settings
        try:
            if settings.token_file:
                token = read_secret(settings.token_file)
                headers["Authorization"] = "Bearer " + token.encode("ascii").decode("ascii")
            elif settings.password_file:
                user = settings.user or message.cluster
                pair = f"{user}:{read_secret(settings.password_file)}".encode()
                headers["Authorization"] = "Basic " + base64.b64encode(pair).decode("ascii")
        except UnicodeEncodeError:
            raise ConfigurationError(f"{settings.token_file}: a token is ASCII") from None
        return headers

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


def retry_after(value: str, now: float) -> float:
    """Give the seconds that a Retry-After header asks for; 0 if it is none.

    Source: RFC 9110, section 10.2.3: seconds, or a date.
    """
    if value.isascii() and value.isdecimal() and len(value) < _LONGEST_NUMBER:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def date_of(value: str) -> float | None:
    """Give the seconds since 1970 of a Date header (RFC 9110, 6.6.1); None if it is none."""
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None


def _shown(text: str, headers: dict[str, str]) -> str:
    """Shorten what the other side said to a line, without our secrets should it echo them."""
    kind, _, credentials = headers.get("Authorization", "").partition(" ")
    secrets = [credentials]
    if kind == "Basic":
        secrets.append(base64.b64decode(credentials).decode().partition(":")[2])
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return printable(text.strip())[:200]
