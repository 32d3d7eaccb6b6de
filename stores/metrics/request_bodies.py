"""Bodies and parameters of requests."""

from __future__ import annotations

import zlib
from urllib.parse import parse_qs

from ccagent.errors import CcagentError
from ccagent.stores.metrics.query_request import BadRequestError

LONGEST_QUERY = 4096
_MOST_MEMBERS = 100


class TooLargeBodyError(CcagentError):
    """A body whose inflated size exceeds the limit."""


def inflate(body: bytes, largest: int) -> bytes:
    """Inflate a gzip body to at most `largest` bytes. Raise BadRequestError, TooLargeBodyError."""
    parts: list[bytes] = []
    left = largest
    while body:
        if len(parts) >= _MOST_MEMBERS:
            raise BadRequestError(f"the gzip body has more than {_MOST_MEMBERS} members")
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            parts.append(inflater.decompress(body, left + 1))
        except zlib.error as error:
            raise BadRequestError(f"the body is not valid gzip: {error}") from error
        left -= len(parts[-1])
        if left < 0:
            raise TooLargeBodyError(f"the body has more than {largest} bytes")
        if not inflater.eof:
            raise BadRequestError("the body is not valid gzip: it is incomplete")
        body = inflater.unused_data
    return b"".join(parts)


def parameter(url: bytes, name: str) -> str | None:
    """Return a parameter of a URL; None if it is missing. Raise BadRequestError."""
    query = url.partition(b"?")[2][:LONGEST_QUERY].decode("ascii", "replace")
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=100).get(name)
    except ValueError as error:
        raise BadRequestError("the URL has too many parameters") from error
    return found[0] if found else None
