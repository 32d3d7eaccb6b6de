"""Which messages go together in one request."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.records.message import Message


class Post(NamedTuple):
    """The body of one request, and how many messages it completes."""

    body: bytes
    messages: int


def posts(messages: Sequence[Message], limit: int) -> Iterator[Post]:
    """Make the requests: an envelope each, points of consecutive messages together.

    Points are split at the ends of lines so that no body is larger than `limit`, unless a single
    line is. Only messages that go to the same place go together.
    """
    for (form, *_), group in groupby(messages, _place):
        if form != "line":
            yield from (Post(message.body, 1) for message in group)
            continue
        bodies: list[bytes] = []
        size = 0
        for message in group:
            if bodies and size + len(message.body) > limit:
                yield Post(b"".join(bodies), len(bodies))
                bodies, size = [], 0
            *parts, rest = _parts(message.body, limit)
            yield from (Post(part, 0) for part in parts)
            bodies.append(rest)
            size += len(rest)
        yield Post(b"".join(bodies), len(bodies))


def _place(message: Message) -> tuple[str, str, str, str, str]:
    """Give what decides over URL and headers."""
    return message.format, message.cluster, message.node, message.kind, message.prefix


def _parts(lines: bytes, limit: int) -> Iterator[bytes]:
    """Split lines at their ends; the last part is what remains."""
    begin = 0
    while len(lines) - begin > limit:
        end = lines.rfind(b"\n", begin, begin + limit) + 1 or lines.find(b"\n", begin) + 1
        if not 0 < end < len(lines):
            break
        yield lines[begin:end]
        begin = end
    yield lines[begin:]
