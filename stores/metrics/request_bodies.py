"""Bodies and parameters of requests."""

from __future__ import annotations

import zlib
from urllib.parse import parse_qs

from ccagent.errors import CcagentError
from ccagent.stores.metrics.query_request import BadRequestError

LONGEST_QUERY = 4096
_MOST_MEMBERS = 100
_PART = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS


class TooLargeBodyError(CcagentError):
    """A body whose inflated size exceeds the limit."""


def inflate(body: bytes | bytearray, largest: int) -> bytearray:
    """Inflate a gzip body to at most `largest` bytes. Raise BadRequestError, TooLargeBodyError.

    Works in small parts: a thread that copies a large one holds up all others.
    """
    found = bytearray()
    members, inflater = 1, zlib.decompressobj(_GZIP)
    for begin in range(0, len(body), _PART):
        rest = bytes(body[begin : begin + _PART])
        while rest:
            if inflater.eof:
                members, inflater = members + 1, zlib.decompressobj(_GZIP)
            if members > _MOST_MEMBERS:
                raise BadRequestError(f"the gzip body has more than {_MOST_MEMBERS} members")
            try:
                found += inflater.decompress(rest, _PART)
            except zlib.error as error:
                raise BadRequestError(f"the body is not valid gzip: {error}") from error
            if len(found) > largest:
                raise TooLargeBodyError(f"the body has more than {largest} bytes")
            rest = inflater.unconsumed_tail or inflater.unused_data
    if body and not inflater.eof:
        raise BadRequestError("the body is not valid gzip: it is incomplete")
    return found


def parameter(url: bytes, name: str) -> str | None:
    """Return a parameter of a URL; None if it is missing. Raise BadRequestError."""
    query = url.partition(b"?")[2][:LONGEST_QUERY].decode("ascii", "replace")
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=100).get(name)
    except ValueError as error:
        raise BadRequestError("the URL has too many parameters") from error
    return found[0] if found else None
