"""`http://` and `https://` post messages: envelopes one a request, points as lines.

An envelope goes to `URL/[prefix.]<kind>`, as Sonar sends it; points go to the URL itself, as
ClusterCockpit's store wants it. `{kind}`, `{cluster}` and `{node}` in the URL are replaced,
and then nothing is appended.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import ssl
from typing import TYPE_CHECKING, Annotated
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Meta

from ccagent import PRODUCER, __version__
from ccagent.duration import Duration
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.log import printable
from ccagent.secret import read_secret
from ccagent.transports.base import SinkSettings, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.message import Message

_TRY_AGAIN = frozenset({408, 425, 429})
_ANSWER_LIMIT = 64 * 1024
_CONTENT_TYPES = {"sonar": "application/json", "line": "text/plain; charset=utf-8"}


class HttpSettings(SinkSettings):
    """The keys of a sink `http://` or `https://`."""

    user: Annotated[
        str, Meta(description="user of Basic authentication; empty: the cluster's name")
    ] = ""
    password_file: Annotated[str, Meta(description="file with the password of that user")] = ""
    token_file: Annotated[str, Meta(description="file with a Bearer token")] = ""
    ca_file: Annotated[
        str, Meta(description="certificates to trust; empty: those of the system")
    ] = ""
    time_limit: Annotated[Duration, Meta(description="for connecting and for each answer")] = (
        Duration("10s")
    )
    allow_clear: Annotated[
        bool, Meta(description="send the password or token over http:// to another machine")
    ] = False


class HttpTransport(Transport):
    """Posts over one kept connection; only 2xx is success; redirects are not followed."""

    Settings = HttpSettings

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = (
            settings
            if isinstance(settings, HttpSettings)
            else HttpSettings(url=settings.url, format=settings.format)
        )
        self._target = _checked(self._settings)
        self._context: ssl.SSLContext | None = None
        if self._target.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=self._settings.ca_file or None)
            except OSError as error:
                raise ConfigurationError(f"{self._settings.ca_file}: {error}") from None
        self._connection: http.client.HTTPConnection | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages, one a request."""
        for number, message in enumerate(messages):
            status, answer = self._post(message, number)
            if 200 <= status < 300:
                continue
            said = printable(answer[:200].decode("utf-8", "replace").strip())
            text = f"{self._place}: {status} {http.client.responses.get(status, '')}: {said}"
            if status in _TRY_AGAIN or status >= 500:
                raise RetryableError(text, delivered=number)
            raise RejectedError(text, delivered=number)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _place(self) -> str:
        """The URL without what could be secret in it."""
        host = self._target.hostname or ""
        port = f":{self._target.port}" if self._target.port else ""
        return f"{self._target.scheme}://{host}{port}{self._target.path}"

    def _post(self, message: Message, number: int) -> tuple[int, bytes]:
        headers = self._headers(message)
        path = self._path(message)
        kept = self._connection is not None
        while True:
            try:
                return self._exchange(path, message.body, headers)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                # A server may close a kept connection at any time: that is worth one more try.
                if kept and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    kept = False
                    continue
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise RetryableError(f"{self._place}: {reason}", delivered=number) from None

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        answer = response.read(_ANSWER_LIMIT)
        if response.will_close or not response.isclosed():
            self.close()
        return response.status, answer

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._target.hostname or "", self._target.port
        seconds = self._settings.time_limit.seconds
        if self._context is not None:
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=seconds)

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
            raise RetryableError(f"{settings.token_file}: a token is ASCII") from None
        except ConfigurationError as error:
            # The file may be replaced at any moment, and be right again the next time.
            raise RetryableError(str(error)) from None
        return headers

    def _path(self, message: Message) -> str:
        path = self._target.path or "/"
        query = f"?{self._target.query}" if self._target.query else ""
        kind = f"{message.prefix}.{message.kind}" if message.prefix else message.kind
        whole = path + query
        if "{" in whole:
            for name, value in (
                ("{kind}", kind), ("{cluster}", message.cluster), ("{node}", message.node)
            ):
                whole = whole.replace(name, quote(value, safe=""))
            return whole
        if message.format == "line":
            return whole
        return f"{path.rstrip('/')}/{quote(kind, safe='')}{query}"


def _checked(settings: HttpSettings) -> SplitResult:
    """Split the URL and refuse what would leak or can't work."""
    url = settings.url
    try:
        target = urlsplit(url)
        _ = target.port
    except ValueError as error:
        raise ConfigurationError(f"{url}: {error}") from None
    if not target.hostname or not url.isprintable() or " " in url or not url.isascii():
        raise ConfigurationError(f"{printable(url)}: not a URL with a host")
    if target.username is not None or target.password is not None:
        raise ConfigurationError(
            "sink URL with a user or password in it: set user and password-file instead"
        )
    if settings.user and ":" in settings.user:
        raise ConfigurationError("user: a colon can't be part of it")
    if settings.token_file and settings.password_file:
        raise ConfigurationError("token-file and password-file exclude each other")
    secret = settings.token_file or settings.password_file
    if secret:
        read_secret(secret)
        if target.scheme == "http" and not settings.allow_clear and not _is_loopback(target):
            raise ConfigurationError(
                f"{url}: {secret} would travel unencrypted: use https:// or set allow-clear = true"
            )
    return target


def _is_loopback(target: SplitResult) -> bool:
    host = target.hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
