"""Grouping of messages into requests."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.records.message import Message


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
            yield from (Post(part, 0) for part in parts)
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
