"""`http://` and `https://` post messages: envelopes one a request, points as lines.

An envelope goes to `URL/[prefix.]<kind>`, as Sonar sends it; points go to the URL itself, as
ClusterCockpit's store wants it. `{kind}`, `{cluster}` and `{node}` in the URL are replaced,
and then nothing is appended.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import re
import ssl
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Meta

from ccagent import PRODUCER, __version__
from ccagent.duration import Duration
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.log import printable
from ccagent.secret import read_secret
from ccagent.transports.base import SinkSettings, Transport

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from _typeshed import WriteableBuffer

    from ccagent.message import Message

_TRY_AGAIN = frozenset({408, 425, 429})
_ANSWER_LIMIT = 64 * 1024
_LONGEST = 86400.0
_CONTENT_TYPES = {"sonar": "application/json", "line": "text/plain; charset=utf-8"}
_PLACEHOLDERS = {"{kind}", "{cluster}", "{node}"}
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What it looks like when the other side has closed the connection."""


class HttpSettings(SinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `http://` or `https://`."""

    user: Annotated[
        str, Meta(description="user of Basic authentication; empty: the cluster's name")
    ] = ""
    password_file: Annotated[str, Meta(description="file with the password of that user")] = ""
    token_file: Annotated[str, Meta(description="file with a Bearer token")] = ""
    ca_file: Annotated[
        str, Meta(description="certificates to trust; empty: those of the system")
    ] = ""
    time_limit: Annotated[
        Duration, Meta(description="for connecting and for each whole answer")
    ] = Duration("10s")
    allow_clear: Annotated[
        bool, Meta(description="send the password or token over http:// to another machine")
    ] = False


class _UntilDeadline(io.RawIOBase):
    """Reads a socket for its time limit in all, however slowly the other side drips."""

    def __init__(self, connected: socket.socket, raw: io.RawIOBase) -> None:
        self._socket = connected
        self._raw = raw
        self._deadline = time.monotonic() + (connected.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(rest)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that has the time limit for all of it, not for each of its packets."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach()))


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
                raise ConfigurationError(f"{self._settings.ca_file}: {error.strerror}") from None
        self._connection: http.client.HTTPConnection | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages, one a request."""
        for number, message in enumerate(messages):
            try:
                headers = self._headers(message)
            except ConfigurationError as error:
                # The file may be replaced at any moment, and be right again the next time.
                raise RetryableError(str(error), delivered=number) from None
            try:
                status, answer = self._post(message, headers)
            except (http.client.HTTPException, OSError) as error:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                text = f"{self._place}: {_shown(reason, headers)}"
                raise RetryableError(text, delivered=number) from None
            if 200 <= status < 300:
                continue
            said = _shown(answer.decode("utf-8", "replace"), headers)
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
        return f"{self._target.scheme}://{self._target.netloc}{self._target.path}"

    def _post(self, message: Message, headers: dict[str, str]) -> tuple[int, bytes]:
        path = self._path(message)
        kept = self._connection is not None
        while True:
            try:
                return self._exchange(path, message.body, headers)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                # A server may close a kept connection at any time: that is worth one more try.
                if kept and isinstance(error, _CLOSED):
                    kept = False
                    continue
                raise

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._made()
            self._connection.connect()
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(self._settings.time_limit.seconds)
        # A server that refuses a body half-way has answered, and says why.
        with contextlib.suppress(*_CLOSED):
            connection.request("POST", path, body, headers)
        response = connection.getresponse()
        try:
            answer = response.read(_ANSWER_LIMIT)
            if response.will_close or not response.isclosed():
                self.close()
        finally:
            response.close()
        return response.status, answer

    def _made(self) -> http.client.HTTPConnection:
        # Without a port http.client would look for one in the host, and find it in [::1].
        host, port = self._target.hostname or "", self._target.port
        seconds = self._settings.time_limit.seconds
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(
                host, port or http.client.HTTPS_PORT, timeout=seconds, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(
                host, port or http.client.HTTP_PORT, timeout=seconds
            )
        connection.response_class = _Answer
        return connection

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


def _checked(settings: HttpSettings) -> SplitResult:
    """Split the URL and refuse what would leak or can't work."""
    target = _split(settings.url)
    if not 0 < settings.time_limit.seconds <= _LONGEST:
        raise ConfigurationError("time-limit: from 1ms to 1d")
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    if ":" in settings.user:
        raise ConfigurationError("user: a colon can't be part of it")
    if settings.token_file and settings.password_file:
        raise ConfigurationError("token-file and password-file exclude each other")
    secret = settings.token_file or settings.password_file
    if secret:
        read_secret(secret)
        if target.scheme == "http" and not settings.allow_clear and not _is_loopback(target):
            raise ConfigurationError(
                f"url: {secret} would travel unencrypted: use https:// or set allow-clear = true"
            )
    return target


def _split(url: str) -> SplitResult:
    """Split a URL; no complaint shows it, for a password or key could be in it."""
    try:
        target = urlsplit(url)
        _ = target.port
    except ValueError:
        raise ConfigurationError("url: its host or port is malformed") from None
    if "@" in target.netloc:
        raise ConfigurationError(
            "url: with a user or password in it: set user and password-file instead"
        )
    if not target.hostname or not url.isprintable() or " " in url or not url.isascii():
        raise ConfigurationError("url: not one with a host, of printable ASCII without spaces")
    found = set(re.findall(r"\{.*?\}", f"{target.path}?{target.query}"))
    if "{" in target.netloc or found - _PLACEHOLDERS:
        raise ConfigurationError(
            "url: its path and query may hold {kind}, {cluster} and {node}, nothing else in braces"
        )
    return target


def _shown(text: str, headers: dict[str, str]) -> str:
    """Shorten what the other side said to a line, without our secrets should it echo them."""
    kind, _, credentials = headers.get("Authorization", "").partition(" ")
    secrets = [credentials]
    if kind == "Basic":
        secrets.append(base64.b64decode(credentials).decode().partition(":")[2])
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return printable(text.strip())[:200]


def _is_loopback(target: SplitResult) -> bool:
    host = target.hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
