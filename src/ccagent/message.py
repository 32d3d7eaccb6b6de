"""Messages: encoded records on their way to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.envelopes import Envelope
from ccagent.errors import EncodingError
from ccagent.points import Point, line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.node import Node

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

Record = Envelope | Point
"""What an agent emits. An envelope is for the format `sonar`, a point for `line`."""

_ID_BYTES = 12

_encoder = msgspec.json.Encoder()


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, `metrics` for points.
    time: seconds since 1970 of the sample.
    body: one JSON object without line breaks, or lines of line protocol, each ended.
    prefix: the configured topic prefix; may be empty.
    id: tells the message from all others, so that a receiver can tell when it comes twice.
    """

    cluster: str
    node: str
    kind: str
    format: Format
    time: float
    body: bytes
    prefix: str = ""
    id: str = ""

    @property
    def topic(self) -> str:
        """The topic or subject: `[prefix.]<cluster>.<kind>`."""
        topic = f"{self.cluster}.{self.kind}"
        return f"{self.prefix}.{topic}" if self.prefix else topic


def encode(
    records: Iterable[Record], wanted: Format, node: Node, *, prefix: str = ""
) -> list[Message]:
    """Encode those of `records` that `wanted` can carry: a message an envelope, one for all points.

    Raises EncodingError.
    """
    now = node.clock.time()

    def message(kind: str, body: bytes) -> Message:
        number = os.urandom(_ID_BYTES).hex()
        return Message(node.cluster, node.hostname, kind, wanted, now, body, prefix, number)

    if wanted == "sonar":
        return [
            message(record.kind, _json(record))
            for record in records
            if not isinstance(record, Point)
        ]
    lines = [line(record) for record in records if isinstance(record, Point)]
    if not lines:
        return []
    return [message("metrics", "".join(text + "\n" for text in lines).encode())]


def encode_each(
    records: Iterable[Record], wanted: Iterable[Format], node: Node, *, prefix: str = ""
) -> Iterator[Message]:
    """Encode records as they come, for several formats: envelopes at once, all points at the end.

    Raises EncodingError.
    """
    points: list[Record] = []
    for record in records:
        if isinstance(record, Point):
            points.append(record)
        else:
            for form in wanted:
                yield from encode([record], form, node, prefix=prefix)
    for form in wanted:
        yield from encode(points, form, node, prefix=prefix)


def _json(envelope: Envelope) -> bytes:
    try:
        return _encoder.encode(envelope)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise EncodingError(f"{envelope.kind} envelope: {error}") from None
