"""Responses of the HTTP interface."""

from __future__ import annotations

import itertools
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.general import LineMessage

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"


class StoreResponse(NamedTuple):
    """An HTTP response. body: complete, or an iterator of parts."""

    status: int
    body: bytes | Iterator[bytes] = b""
    kind: bytes = JSON
    more: bytes = b""
    """Additional header fields, each with its line end."""


OK = StoreResponse(200)


def fail(status: int, reason: str, **more: Any) -> StoreResponse:
    """Return an error in the reference's format."""
    found = {"status": HTTPStatus(status).phrase, "error": reason, **more}
    return StoreResponse(status, msgspec.json.encode(found) + b"\n")


def complain(message: LineMessage) -> StoreResponse:
    """Return the error for a message with bad lines, refused series or refused jobs."""
    bad = message.bad
    counts = {
        "lines": [{"line": one.number, "reason": one.reason} for one in bad],
        "bad": message.bad_count,
        "stored": message.stored,
    }
    refusal = message.refusal
    if refusal is None:
        return fail(400, f"line {bad[0].number}: {bad[0].reason}", **counts)
    # InfluxDB's words for it: ccagent's sinks set the message aside and go on.
    found = fail(
        refusal.status,
        f"partial write: {message.refused} values refused, {message.stored} stored:"
        f" {refusal.reason}",
        refused=message.refused,
        **counts,
    )
    return found._replace(more=retry_after(refusal.seconds))


def retry_after(seconds: int) -> bytes:
    """Return the header field Retry-After; empty for 0."""
    return b"Retry-After: %d\r\n" % seconds if seconds else b""


def text(status: int, reason: str, more: bytes = b"") -> StoreResponse:
    """Return a response with a line of plain text."""
    return StoreResponse(status, reason.encode("utf-8", "replace") + b"\n", TEXT, more)


def head(
    status: int, kind: bytes, more: bytes, length: int | None, *, is_chunked: bool = True
) -> bytes:
    """Return status line and header. length: None for a chunked body, or one ended by closing."""
    size = b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
    if length is not None:
        size = b"Content-Length: %d\r\n" % length
    described = b"Content-Type: %b\r\n" % kind if length != 0 else b""
    return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (
        status, HTTPStatus(status).phrase.encode(), described, more, size,
    )  # fmt: skip


def begun(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Compute the first part immediately, to raise errors before the response starts."""
    return itertools.chain([next(parts)], parts)
