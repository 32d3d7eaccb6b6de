"""Messages: encoded records on their way to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.envelopes import Envelope
from ccagent.errors import EncodingError
from ccagent.events import Event, event_line
from ccagent.json_array import JsonArray
from ccagent.points import Point, line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.node import Node

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

Record = Envelope | JsonArray | Point | Event
"""What an agent emits. Envelopes and arrays are for the format `sonar`, the others for `line`."""

_ID_BYTES = 12

_encoder = msgspec.json.Encoder()


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, that of an array, `metrics` for
    points, `events.job` and `events.slurm` for events.
    time: seconds since 1970 of the sample.
    body: one JSON object or array without line breaks, or lines of line protocol, each ended.
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
    """Encode those of `records` that `wanted` can carry.

    A message an envelope, one for all points, one for the events of a subject.

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
            if not isinstance(record, Point | Event)
        ]
    lines: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record, Point):
            lines.setdefault("metrics", []).append(line(record))
        elif isinstance(record, Event):
            lines.setdefault(f"events.{record.subject}", []).append(event_line(record))
    return [
        message(kind, "".join(text + "\n" for text in texts).encode())
        for kind, texts in lines.items()
    ]


def encode_each(
    records: Iterable[Record], wanted: Iterable[Format], node: Node, *, prefix: str = ""
) -> Iterator[Message]:
    """Encode records as they come, for several formats: envelopes at once, all lines at the end.

    Raises EncodingError.
    """
    lines: list[Record] = []
    for record in records:
        if isinstance(record, Point | Event):
            lines.append(record)
        else:
            for form in wanted:
                yield from encode([record], form, node, prefix=prefix)
    for form in wanted:
        yield from encode(lines, form, node, prefix=prefix)


def _json(envelope: Envelope | JsonArray) -> bytes:
    try:
        if isinstance(envelope, JsonArray):
            return _encoder.encode(envelope.items)
        return _encoder.encode(envelope)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise EncodingError(f"{envelope.kind} envelope: {error}") from None
