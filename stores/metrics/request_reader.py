"""Requests from the bytes of a connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httptools

from ccagent.net.request_parser import RequestParser
from ccagent.stores.metrics.ingest import PIECE, TOO_LONG_LINE
from ccagent.stores.metrics.request_head import RepeatedHead, RequestHead
from ccagent.stores.metrics.responses import StoreResponse, fail, text

if TYPE_CHECKING:
    from ccagent.stores.metrics.api import ServerPath, StoreApi
    from ccagent.stores.metrics.connection_limits import ConnectionLimits

_LONGEST_HEADER = 32 << 10
"""Maximum bytes of a request besides its body."""

_CHUNK = 64
"""Maximum bytes around a chunk, on average."""


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
