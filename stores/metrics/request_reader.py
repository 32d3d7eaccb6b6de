"""Reading requests out of the bytes of a connection.

The parser is that of Node.js (llhttp), through httptools.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import httptools

from ccagent.stores.metrics.request_head import RepeatedHead, RequestHead
from ccagent.stores.metrics.responses import StoreResponse, fail, text

if TYPE_CHECKING:
    from ccagent.stores.metrics.api import ServerPath, StoreApi
    from ccagent.stores.metrics.connection_limits import ConnectionLimits

_LONGEST_HEADER = 32 << 10
"""Bytes of a request besides its body."""

_CHUNK = 64
"""Bytes that surround a chunk at most, on average."""


class StoreRequest(NamedTuple):
    """A whole request. keeps_alive: others may follow. takes_chunks: it is of HTTP/1.1."""

    route: ServerPath
    url: bytes
    body: bytes
    is_gzip: bool
    keeps_alive: bool
    takes_chunks: bool


class RequestReceiver(Protocol):
    """Who answers requests."""

    def take(self, request: StoreRequest) -> None:
        """Answer a request, now or when it is its turn. Its body counts until then."""
        ...

    def refuse(self, response: StoreResponse) -> None:
        """Answer a request that is not read to its end; nothing follows."""
        ...

    def expect(self) -> None:
        """Ask for the body that a client holds back."""
        ...


class RequestReader:
    """Takes requests apart, and refuses those that can't be answered before their bodies came."""

    def __init__(self, api: StoreApi, limits: ConnectionLimits, receiver: RequestReceiver) -> None:
        self.began = 0.0
        """When the request began that is not complete; 0: there is none."""
        self.is_refused = False
        self._api = api
        self._limits = limits
        self._receiver = receiver
        self._time = asyncio.get_running_loop().time
        self._parser: Any = httptools.HttpRequestParser(self)
        self._head = RequestHead(api.largest_body)
        self._repeated: RepeatedHead | None = None
        self._whole = b""
        """The bytes that came at once and begin with a request."""
        self._received = 0
        """Bytes of the request, its body included."""
        self._chunks = 0
        self._is_in_header = True
        self._route: ServerPath | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Parse what came."""
        if self.is_refused:
            return  # the rest of a body that nobody wants
        if not self.began:
            if self._repeated is not None and self._take_repeated(self._repeated, data):
                return
            self._whole = data
        self._received += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if not self.is_refused:
                self._refuse(text(400, f"no HTTP request: {error}"))
        else:
            around = self._received - self._size - _CHUNK * self._chunks
            if around > _LONGEST_HEADER and not self.is_refused:
                self._refuse(text(431, "the header or trailer is too long"))
        self._whole = b""

    def close(self) -> None:
        """Forget a request that is not complete."""
        self._limits.body_bytes -= self._size
        self._size = 0
        self._parts = []

    def _parse(self, data: bytes) -> None:
        """Parse bytes. An upgrade, as to HTTP/2, is declined by ignoring it (RFC 9110, 7.8)."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._parser = httptools.HttpRequestParser(self)
                data = data[upgrade.args[0] :]
                if self.is_refused or not data:
                    return
            else:
                return

    def _take_repeated(self, repeated: RepeatedHead, data: bytes) -> bool:
        """Take a request whose head came before; return whether it is one, and whole."""
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
        """Begin to count the time of a request."""
        self.began = self._time()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line. Those after the body, in a trailer, change nothing."""
        if self._is_in_header:
            self._head.take(name, value)

    def on_chunk_header(self) -> None:
        """Count the chunks of a body."""
        self._chunks += 1

    def on_headers_complete(self) -> None:
        """Refuse a request before its body, if it can't be answered."""
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
                self._route = self._api.restrict(route, asked.authorization)
            refusal = refused or refusal
        if refusal is not None:
            self._refuse(refusal)
        elif asked.is_expected:
            self._receiver.expect()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self.is_refused:
            return
        self._size += len(body)
        limits = self._limits
        limits.body_bytes += len(body)
        if self._size > self._api.largest_body:
            self._refuse(fail(413, f"a body has at most {self._api.largest_body} bytes"))
        elif limits.body_bytes > limits.bodies:
            self._refuse(fail(503, "too many requests at once; try again"))
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Hand the request over."""
        route, parts = self._route, self._parts
        if self.is_refused or route is None:
            return
        # Clients of HTTP/1.0 that keep connections want a header that says so.
        takes_chunks = self._parser.get_http_version() == "1.1"
        request = StoreRequest(
            route,
            self._head.url,
            parts[0] if len(parts) == 1 else b"".join(parts),
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
        self._parts = []
        self._size = 0
        self._route = None
        self._whole = b""

    def _refuse(self, response: StoreResponse) -> None:
        self.is_refused = True
        self._limits.refused += 1
        self._parts = []
        self._receiver.refuse(response)
