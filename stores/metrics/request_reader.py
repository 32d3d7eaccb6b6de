"""Requests from the bytes of a connection: heads, bodies, and limits of all connections."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httptools

from ccagent.log import logger
from ccagent.net.request_parser import RequestParser
from ccagent.stores.metrics.ingest import PIECE, TOO_LONG_LINE
from ccagent.stores.metrics.responses import StoreResponse, fail, text

if TYPE_CHECKING:
    from ccagent.stores.metrics.api import ServerPath, StoreApi


_NAMES = ("authorization", "content-encoding", "expect", "content-length", "x-auth-token",
          "transfer-encoding")  # fmt: skip
_LENGTHS = {len(name) for name in _NAMES}
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=[ \t]*\r\n)", re.IGNORECASE)
_MOST_DIGITS = 10


class RepeatedHead(NamedTuple):
    """A head that a client repeats. Only the body's length differs.

    The parser has accepted the head once, and the same bytes are not parsed again.
    """

    begin: bytes
    end: bytes
    """The bytes before and after the digits of the length."""
    route: ServerPath
    url: bytes
    authorization: bytes

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of a request with this head; None unless `data` is one request."""
        if not data.startswith(self.begin):
            return None
        first = len(self.begin)
        last = data.find(self.end, first, first + _MOST_DIGITS + len(self.end))
        digits = data[first:last]
        if last < 0 or not digits.isdigit():
            return None
        body = data[last + len(self.end) :]
        return body if len(body) == int(digits) else None


class RequestHead:
    """Header fields of one request. refusal: an error response if they can't be accepted."""

    __slots__ = ("_framings", "_largest", "authorization", "is_expected", "is_gzip", "refusal",
                 "url")  # fmt: skip

    def __init__(self, largest_body: int) -> None:
        self.url = b""
        self.authorization = b""
        self.is_gzip = False
        self.is_expected = False
        self.refusal: StoreResponse | None = None
        self._framings = 0
        self._largest = largest_body

    def take(self, name: bytes, value: bytes) -> None:
        """Process a header field."""
        if len(name) not in _LENGTHS:
            return
        name = name.lower()
        if name == b"authorization":
            self.authorization = value
        elif name == b"content-encoding":
            self.is_gzip = value.lower() == b"gzip"
            if not self.is_gzip and value.lower() != b"identity":
                self.refusal = text(415, "the only content encoding is gzip")
        elif name == b"expect":
            self.is_expected = value.lower() == b"100-continue"
        elif name in {b"content-length", b"transfer-encoding"}:
            self._take_framing(name, value)
        elif name == b"x-auth-token" and not self.authorization:
            self.authorization = b"Bearer " + value

    def _take_framing(self, name: bytes, value: bytes) -> None:
        """Check Content-Length or Transfer-Encoding. Refuse two: a proxy may use the other one."""
        self._framings += 1
        if self._framings > 1:
            self.refusal = text(400, "a request has one Content-Length or one Transfer-Encoding")
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                self.refusal = text(501, "the only transfer encoding is chunked")
        elif not value.isdigit():
            self.refusal = text(400, "Content-Length is not a number")
        elif int(value[:20]) > self._largest:
            self.refusal = fail(413, f"a body has at most {self._largest} bytes")

    def repeated(
        self, route: ServerPath, data: bytes, body: bytes | bytearray
    ) -> RepeatedHead | None:
        """Return the head for reuse; None unless `data` is one request with a length."""
        whole = data[: len(data) - len(body)]
        # All parsers must see the same end of the head. No bytes may follow the body.
        if whole.find(b"\r\n\r\n") != len(whole) - 4 or whole.count(b"\n") != whole.count(b"\r\n"):
            return None
        found = list(_LENGTH.finditer(whole))
        if self.is_gzip or self.is_expected or len(found) != 1 or int(found[0][1]) != len(body):
            return None
        first, last = found[0].span(1)
        return RepeatedHead(whole[:first], whole[last:], route, self.url, self.authorization)


_LONGEST_HEADER = 32 << 10
"""Maximum bytes of a request besides its body."""

_CHUNK = 64
"""Maximum bytes around a chunk, on average."""

_READ_AT_ONCE = 256 << 10


class OpenConnection(Protocol):
    """The methods of a connection that the server calls."""

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        ...

    def is_busy(self) -> bool:
        """Return whether a request is not answered yet."""
        ...

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        ...


class ConnectionLimits:
    """State shared by all connections: their number, bytes of bodies in memory, time limits."""

    def __init__(self, *, most: int = 20_000, bodies: int = 1 << 30, seconds: float = 30.0) -> None:
        self.most = most
        self.bodies = bodies
        self.seconds = seconds
        """Maximum duration of receiving a request, and of sending a response."""
        self.idle = 300.0
        """Seconds of idleness until a connection is closed."""
        self.body_bytes = 0
        self.buffer = memoryview(bytearray(_READ_AT_ONCE))
        """The receive buffer shared by all connections."""
        self.open: set[OpenConnection] = set()
        self._of_address: dict[str, int] = {}
        """Number of open connections by address."""
        self.requests = 0
        self.refused = 0

    def admit(self, address: str) -> bool:
        """Count a new connection. Return False beyond the limits: one address has half of all."""
        of_address = self._of_address.get(address, 0)
        if len(self.open) >= self.most:
            reason = f"{self.most} are open (limits.connections)"
        elif address and of_address >= max(1, self.most // 2):
            reason = f"{of_address} of one address are open (half of limits.connections)"
        else:
            self._of_address[address] = of_address + 1
            return True
        self.refused += 1
        logger.warning("refused a connection: %s", reason, key="store connections")
        return False

    def release(self, address: str) -> None:
        """Subtract a closed connection."""
        left = self._of_address.pop(address, 0) - 1
        if left > 0:
            self._of_address[address] = left


class StoreRequest(NamedTuple):
    """A complete request. keeps_alive: the connection stays open. takes_chunks: HTTP/1.1."""

    route: ServerPath
    url: bytes
    body: bytes | bytearray
    """A bytearray if it has arrived in many parts."""
    is_gzip: bool
    keeps_alive: bool
    takes_chunks: bool


class RequestReceiver(Protocol):
    """The receiver of parsed requests."""

    def take(self, request: StoreRequest) -> None:
        """Process a request, now or later. Until then the receiver counts the body's size."""
        ...

    def refuse(self, response: StoreResponse) -> None:
        """Send an error response to an incomplete request, the last one of the connection."""
        ...

    def expect(self) -> None:
        """Send `100 Continue`, for which the client waits with its body."""
        ...


class RequestReader:
    """Parses requests. Invalid requests are refused before their bodies arrive."""

    def __init__(
        self,
        api: StoreApi,
        limits: ConnectionLimits,
        receiver: RequestReceiver,
    ) -> None:
        self.address = ""
        """The client's address or network."""
        self.began = 0.0
        """Start time of the incomplete request; 0 without one."""
        self.is_refused = False
        self._api = api
        self._limits = limits
        self._receiver = receiver
        self._time = asyncio.get_running_loop().time
        self._parser = RequestParser(self)
        self._head = RequestHead(api.largest_body)
        self._repeated: RepeatedHead | None = None
        self._whole = b""
        """The received bytes that start with the current request."""
        self._received = 0
        """Received bytes of the request, including its body."""
        self._chunks = 0
        self._is_in_header = True
        self._route: ServerPath | None = None
        self._body: bytes | bytearray = b""
        self._size = 0
        self._has_lines = False
        """True if the body need not contain a line break, or contains one."""

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.is_refused:
            return  # the rest of a refused body
        if not self.began:
            if self._repeated is not None and self._take_repeated(self._repeated, data):
                return
            self._whole = data
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.is_refused:
                self._refuse(text(400, f"not an HTTP request: {error}"))
        else:
            around = self._received - self._size - _CHUNK * self._chunks
            if around > _LONGEST_HEADER and not self.is_refused:
                self._refuse(text(431, "the header or trailer is too long"))
        self._whole = b""

    def close(self) -> None:
        """Discard an incomplete request, and what refers to this reader: it is not used again."""
        self.is_refused = True
        self._parser.close()
        del self._receiver
        self._limits.body_bytes -= self._size
        self._size = 0
        self._body = b""

    def _take_repeated(self, repeated: RepeatedHead, data: bytes) -> bool:
        """Process a complete request with a known head. Return whether `data` is such a request."""
        body = repeated.body_of(data)
        if body is None or len(body) > self._api.largest_body:
            return False
        route, url, authorization = repeated.route, repeated.url, repeated.authorization
        limits = self._limits
        if limits.body_bytes + len(body) > limits.bodies:
            return False
        if self._api.authorize(route, authorization) is not None:
            return False
        limits.body_bytes += len(body)
        self._receiver.take(StoreRequest(route, url, body, False, True, True))
        return True

    # httptools

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        self.began = self._time()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Process a header field. Ignore trailer fields, which follow the body."""
        if self._is_in_header:
            self._head.take(name, value)

    def on_chunk_header(self) -> None:
        """Count the chunks of a body."""
        self._chunks += 1

    def on_headers_complete(self) -> None:
        """Refuse an invalid request before its body arrives."""
        self._is_in_header = False
        if self.is_refused:
            return
        asked = self._head
        route = self._api.route(self._parser.get_method(), asked.url)
        refusal = asked.refusal
        if isinstance(route, StoreResponse):
            refusal = route
        else:
            refused = self._api.authorize(route, asked.authorization)
            if refused is None:
                self._route = self._api.restrict(route, asked.authorization, self.address)
            refusal = refused or refusal
            self._has_lines = route.name != "write" or asked.is_gzip
        if refusal is not None:
            self._refuse(refusal)
        elif asked.is_expected:
            self._receiver.expect()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        if self.is_refused:
            return
        self._size += len(body)
        limits = self._limits
        limits.body_bytes += len(body)
        if self._size > self._api.largest_body:
            self._refuse(fail(413, f"a body has at most {self._api.largest_body} bytes"))
        elif limits.body_bytes > limits.bodies:
            self._refuse(fail(503, "too many requests at once; try again"))
        elif not self._body:
            self._body = body
            self._has_lines |= b"\n" in body
        else:
            # Joining the parts at the end would copy up to 64 MB at once.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
            if not self._has_lines:
                self._has_lines = b"\n" in body
                if self._size > PIECE and not self._has_lines:
                    self._refuse(fail(400, f"line 1: {TOO_LONG_LINE}"))

    def on_message_complete(self) -> None:
        """Pass the complete request to the receiver."""
        route = self._route
        if self.is_refused or route is None:
            return
        # HTTP/1.0 clients with keep-alive would need an additional header field.
        takes_chunks = self._parser.get_http_version() == "1.1"
        request = StoreRequest(
            route,
            self._head.url,
            self._body,
            self._head.is_gzip,
            takes_chunks and self._parser.should_keep_alive(),
            takes_chunks,
        )
        if request.keeps_alive and self._whole:
            self._repeated = self._head.repeated(route, self._whole, request.body)
        self._reset()
        self._receiver.take(request)

    def _reset(self) -> None:
        self._head = RequestHead(self._api.largest_body)
        self._is_in_header = True
        self._received = self._chunks = 0
        self.began = 0.0
        self._body = b""
        self._size = 0
        self._route = None
        self._whole = b""

    def _refuse(self, response: StoreResponse) -> None:
        self.is_refused = True
        self._limits.refused += 1
        self._api.count_refused(self.address)
        self._body = b""
        self._receiver.refuse(response)
