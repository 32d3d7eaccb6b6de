"""The head of a request: relevant header fields and their checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.stores.metrics.responses import StoreResponse, fail, text

if TYPE_CHECKING:
    from ccagent.stores.metrics.api import ServerPath

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
