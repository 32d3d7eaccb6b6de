"""The head of a request: the header lines that matter, and what is wrong with them."""

from __future__ import annotations

from ccagent.stores.metrics.responses import StoreResponse, fail, text

_NAMES = ("authorization", "content-encoding", "expect", "content-length", "x-auth-token",
          "transfer-encoding")  # fmt: skip
_LENGTHS = {len(name) for name in _NAMES}


class RequestHead:
    """Header lines of one request. refusal: the answer if they can't be accepted."""

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
        """Take a header line."""
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
        """Take a length, or the chunks. Two of them are refused: a proxy may take the other one."""
        self._framings += 1
        if self._framings > 1:
            self.refusal = text(400, "a request has one Content-Length or one Transfer-Encoding")
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                self.refusal = text(501, "the only transfer encoding is chunked")
        elif not value.isdigit():
            self.refusal = text(400, "Content-Length is no number")
        elif int(value[:20]) > self._largest:
            self.refusal = fail(413, f"a body has at most {self._largest} bytes")
