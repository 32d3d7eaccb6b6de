"""The transport `http://` and `https://`: one envelope or many lines per request.

Like Sonar, it posts an envelope to `URL/[prefix.]<kind>`. It posts lines to the URL itself, as
ClusterCockpit's store expects. If the URL contains `{kind}`, `{cluster}` or `{node}`, these are
replaced and nothing is appended.
"""

from __future__ import annotations

import base64
import gzip
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple
from urllib.parse import quote

from msgspec import Meta, structs

from ccagent import PRODUCER, __version__
from ccagent.config.secret import read_secret
from ccagent.errors import (
    ConfigurationError,
    RejectedError,
    RetryableError,
    TooLargeError,
    TransportError,
)
from ccagent.net.tls import check_network
from ccagent.net.urls import Server, server_of_url, split_url
from ccagent.transports.base import (
    NetworkSinkSettings,
    ProbeResult,
    Transport,
    check_template,
    fill_template,
    get_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from urllib.parse import SplitResult

    from ccagent.records.message import Message
    from ccagent.transports.http_server import HttpRequest

_SMALLEST_LIMIT = 16 * 1024
"""A smaller body in bytes is never refused for its size."""

_CONTENT_TYPES = {"sonar": "application/json", "line": "text/plain; charset=utf-8"}


class HttpSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `http://` or `https://`."""

    user: Annotated[
        str, Meta(description="user of Basic authentication; empty: the cluster's name")
    ] = ""
    token_file: Annotated[str, Meta(description="file with a Bearer token")] = ""
    proxy: Annotated[
        str, Meta(description="proxy, http://HOST:PORT; the environment is not read")
    ] = ""
    max_payload: Annotated[
        int, Meta(ge=1, description="maximum bytes of a body, before compression")
    ] = 1_000_000
    gzip: Annotated[
        bool, Meta(description="compress requests (Jobanalyzer and ClusterCockpit refuse that)")
    ] = False

    takes_errors_alone: ClassVar[bool] = False

    @property
    def largest_body(self) -> int:
        """Maximum bytes of a body: the minimum of `max-payload` and the receiver's limit."""
        known = self.preset
        limit = known.largest_body if known is not None else None
        return self.max_payload if limit is None else min(limit, self.max_payload)


def check_settings(settings: HttpSettings) -> SplitResult:
    """Check the keys and return the URL in parts. Raise ConfigurationError."""
    target = split_url(settings.url)
    check_template("url", f"{target.path}?{target.query}", ("kind", "cluster", "node"))
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    if ":" in settings.user:
        raise ConfigurationError("user: a colon can't be part of it")
    if settings.gzip and settings.receiver:
        raise ConfigurationError(f"gzip: {settings.receiver} refuses compressed requests")
    if settings.token_file and settings.password_file:
        raise ConfigurationError("token-file and password-file exclude each other")
    proxy = split_proxy(settings)
    check_network(
        settings,
        [target.hostname or "", *([proxy.host] if proxy else [])],
        is_encrypted=target.scheme == "https",
        secret=settings.token_file or settings.password_file,
    )
    return target


def with_scheme(settings: HttpSettings, schemes: Mapping[str, str]) -> HttpSettings:
    """Return the settings with the scheme of HTTP in place of a scheme of ccagent's own."""
    scheme, _, rest = settings.url.partition(":")
    return structs.replace(settings, url=f"{schemes.get(scheme.lower(), scheme)}:{rest}")


def split_proxy(settings: HttpSettings) -> Server | None:
    """Return host and port of the proxy; None without proxy. Raise ConfigurationError."""
    if not settings.proxy:
        return None
    try:
        target = split_url(settings.proxy)
    except ConfigurationError:
        target = None
    if target is None or target.scheme != "http" or target.path.strip("/") or target.query:
        raise ConfigurationError("proxy: expected http://HOST:PORT, without user or password")
    return server_of_url(target)


class Post(NamedTuple):
    """The body of one request, and the number of messages that it completes."""

    body: bytes
    messages: int


def group_posts(messages: Sequence[Message], limit: int) -> Iterator[Post]:
    """Yield the bodies of requests: one envelope, or lines of consecutive messages.

    Bodies of lines are split at line breaks. No body is larger than `limit`, unless a single line
    is. Only messages for the same URL share a request.
    """
    for (form, *_), group in groupby(messages, _target_of):
        if form != "line":
            yield from (Post(message.body, 1) for message in group)
            continue
        bodies: list[bytes] = []
        size = 0
        for message in group:
            if bodies and size + len(message.body) > limit:
                yield Post(b"".join(bodies), len(bodies))
                bodies, size = [], 0
            *parts, rest = _split_lines(message.body, limit)
            yield from (Post(body, 0) for body in parts)
            bodies.append(rest)
            size += len(rest)
        yield Post(b"".join(bodies), len(bodies))


def _target_of(message: Message) -> tuple[str, str, str, str, str]:
    """Return the values that determine URL and headers."""
    return message.format, message.cluster, message.node, message.kind, message.prefix


def _split_lines(lines: bytes, limit: int) -> Iterator[bytes]:
    """Yield parts of lines, split at line breaks. The last part is the rest."""
    begin = 0
    while len(lines) - begin > limit:
        end = lines.rfind(b"\n", begin, begin + limit) + 1 or lines.find(b"\n", begin) + 1
        if not 0 < end < len(lines):
            break
        yield lines[begin:end]
        begin = end
    yield lines[begin:]


class HttpTransport(Transport):
    """Posts over one kept connection: one envelope or the lines of many messages per request.

    Only 2xx is success; redirects are not followed.
    """

    Settings = HttpSettings

    def __init__(self, settings: HttpSettings, largest: int | None = None) -> None:
        """largest: maximum bytes read of an answer; None: those of an error."""
        from ccagent.transports.http_server import HttpServer

        self._settings = settings
        self._target = check_settings(settings)
        self._server = HttpServer(settings, self._target, split_proxy(settings), largest)
        self._limit = self.largest_body = settings.largest_body

    def send(self, messages: Sequence[Message]) -> None:
        """Post messages: one envelope per request, or lines up to `max-payload`."""
        self._send(messages, 0, len(messages))

    def _send(self, messages: Sequence[Message], begin: int, end: int) -> None:
        """Post some of the messages. Split a refused group until a single message is refused."""
        first = begin
        for post in self._group(messages, begin, end):
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

    def _group(self, messages: Sequence[Message], begin: int, end: int) -> Iterator[Post]:
        """Yield the bodies of requests for some of the messages. Raise TransportError."""
        return group_posts(messages[begin:end], self._limit)

    def _lower_limit(self, message: Message, body: bytes) -> bool:
        """Lower the limit after a too large body. Return whether the body can be split."""
        limit = len(body) // 2
        if message.format != "line" or body.count(b"\n") < 2 or limit < _SMALLEST_LIMIT:
            return False
        self._limit = limit
        return True

    def probe(self, message: Message) -> ProbeResult:
        """Send a HEAD request to the URL of a message. Raise RetryableError or RejectedError."""
        return self._server.probe(self._build_request(message, 0))

    def _deliver(self, message: Message, body: bytes, delivered: int) -> None:
        """Post one body to the URL and with the headers of `message`."""
        request = self._build_request(message, delivered)
        if self._settings.gzip:
            request.headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, compresslevel=6, mtime=0)
        self.answer = self._server.post(request, body, delivered)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _build_request(self, message: Message, delivered: int) -> HttpRequest:
        """Return the request for a message. Raise RetryableError."""
        from ccagent.transports.http_server import HttpRequest

        target = self._target
        try:
            headers, secrets = self._build_headers(message)
        except ConfigurationError as error:
            # The file may be valid at the next attempt.
            raise RetryableError(str(error), delivered=delivered) from error
        return HttpRequest(
            # Without the query: it may contain a secret.
            f"{target.scheme}://{target.netloc}{target.path}",
            self._build_path(message),
            headers,
            secrets,
            (message.cluster, message.node, message.kind, message.prefix),
            self._has_own_url(message),
        )

    def _build_headers(self, message: Message) -> tuple[dict[str, str], list[str]]:
        """Return the headers of a request, and the secrets in them. Raise ConfigurationError."""
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
            # The cause contains the token.
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
    """Return whether one of several messages may be the cause of a refusal."""
    return isinstance(error, RejectedError) or (
        isinstance(error, RetryableError) and error.is_about_message
    )
