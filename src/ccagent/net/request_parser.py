"""A parser of HTTP/1.x requests that ignores the header field `Upgrade`.

The parser is Node.js' llhttp, through httptools. httptools skips the body of a request with
`Upgrade`: the body would be lost, and its bytes parsed as the next request.
"""

from __future__ import annotations

from typing import Any

import httptools

_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class RequestParser:
    """Has the interface of `httptools.HttpRequestParser`, and parses upgrades as plain requests.

    A server may ignore `Upgrade` (RFC 9110, 7.8). When httptools stops after such a head, another
    parser continues from a head with the same framing and without `Upgrade`.
    protocol: has the callbacks of httptools. ignores_rest: accept and ignore data after a request
    with `Connection: close`.
    """

    def __init__(self, protocol: Any, *, ignores_rest: bool = False) -> None:
        self._protocol = protocol
        self._ignores_rest = ignores_rest
        for name in ("on_body", "on_chunk_header"):
            if hasattr(protocol, name):
                setattr(self, name, getattr(protocol, name))
        self._framing: list[tuple[bytes, bytes]] = []
        self._is_in_head = True
        self._is_upgrade = False
        """True from the end of a head with `Upgrade` until the other parser has read its head."""
        self._parser = self._make_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse received bytes. Raise httptools.HttpParserError, also for the method CONNECT."""
        rest: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self._parser = self._make_parser()
                self._parser.feed_data(head)
            else:
                return

    def close(self) -> None:
        """Remove all references to the protocol. They would delay the release of its memory."""
        self.__dict__.clear()

    def get_method(self) -> bytes:
        """Return the method of the request."""
        found: bytes = self._parser.get_method()
        return found

    def get_http_version(self) -> str:
        """Return the version of the request, such as 1.1."""
        found: str = self._parser.get_http_version()
        return found

    def should_keep_alive(self) -> bool:
        """Return whether the connection stays open after the request."""
        found: bool = self._parser.should_keep_alive()
        return found

    @staticmethod
    def should_upgrade() -> bool:
        """Return False."""
        return False

    # httptools

    def on_message_begin(self) -> None:
        """Start a request."""
        if not self._is_upgrade:
            self._is_in_head = True
            self._framing = []
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Pass on a part of the URL."""
        if not self._is_upgrade:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pass on a header or trailer field. Remember the fields that define the framing."""
        if self._is_upgrade:
            return
        if self._is_in_head and name.lower() in _FRAMING:
            self._framing.append((name.lower(), value))
        self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass on the end of the head, unless httptools would skip the body."""
        self._is_in_head = False
        self._is_upgrade = self._parser.should_upgrade()
        if not self._is_upgrade:
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass on the end of the request."""
        if not self._is_upgrade:
            self._protocol.on_message_complete()

    def _make_parser(self) -> Any:
        parser: Any = httptools.HttpRequestParser(self)
        if self._ignores_rest and hasattr(parser, "set_dangerous_leniencies"):
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head_without_upgrade(self) -> bytes:
        """Return a head with the framing of the request. Raise HttpParserError for CONNECT."""
        method = self.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("the method CONNECT is not supported")
        lines = [b"%b / HTTP/%b" % (method, self.get_http_version().encode())]
        for name, value in self._framing:
            kept = value
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                kept = b", ".join(option for option in options if option.lower() != b"upgrade")
            lines.append(b"%b: %b" % (name, kept))
        return b"\r\n".join([*lines, b"", b""])
