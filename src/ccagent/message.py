"""Messages: encoded records on their way to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.envelopes import Envelope
from ccagent.errors import EncodingError
from ccagent.events import Event, event_line
from ccagent.json_array import JsonArray
from ccagent.log_message import LogMessage, log_line
from ccagent.points import Point, line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ccagent.node import Node

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

Record = Envelope | JsonArray | Point | Event | LogMessage
"""What an agent emits. Envelopes and arrays are for the format `sonar`, the others for `line`."""

_LINES = (Point, Event, LogMessage)
_ID_BYTES = 12
_LARGEST = 512 * 1024
"""Characters of lines that go into one message: servers refuse large ones (NATS: above 1 MiB)."""

_encoder = msgspec.json.Encoder()


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, that of an array, `metrics` for
    points, `events.job` and `events.slurm` for events, `log.COMPONENT` for log messages.
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
    """Encode those of `records` that `wanted` can carry, as `encode_each` does."""
    return list(encode_each(records, (wanted,), node, prefix=prefix))


def encode_each(
    records: Iterable[Record], wanted: Collection[Format], node: Node, *, prefix: str = ""
) -> Iterator[Message]:
    """Encode records as they come, each for those of the wanted formats that can carry it.

    A message an envelope or array, at once. Points share messages, and so do the events of a
    subject; these come at the end, or before when one has grown large. Raises EncodingError.
    """
    now = node.clock.time()

    def message(kind: str, form: Format, body: bytes) -> Message:
        number = os.urandom(_ID_BYTES).hex()
        return Message(node.cluster, node.hostname, kind, form, now, body, prefix, number)

    takes_envelopes, takes_lines = "sonar" in wanted, "line" in wanted
    batches: dict[str, _Batch] = {}
    for record in records:
        if not isinstance(record, _LINES):
            if takes_envelopes:
                yield message(record.kind, "sonar", _json(record))
            continue
        if not takes_lines:
            continue
        kind, text = _as_line(record)
        batch = batches.get(kind)
        if batch is None:
            batch = batches[kind] = _Batch()
        elif batch.size + len(text) >= _LARGEST:
            yield message(kind, "line", batch.body())
            batch = batches[kind] = _Batch()
        batch.lines.append(text)
        batch.size += len(text) + 1
    for kind, batch in batches.items():
        yield message(kind, "line", batch.body())


def in_nanoseconds(message: Message) -> Message:
    """Give a message with the times of its lines in nanoseconds; what has no lines is the same."""
    if message.format != "line":
        return message
    # A line ends with whole seconds, and nothing in it can be a line break.
    body = message.body.replace(b"\n", b"000000000\n")
    return msgspec.structs.replace(message, body=body)


def _as_line(record: Point | Event | LogMessage) -> tuple[str, str]:
    """Give the kind of message and the line."""
    if isinstance(record, Point):
        return "metrics", line(record)
    if isinstance(record, LogMessage):
        return f"log.{record.component}", log_line(record)
    return f"events.{record.subject}", event_line(record)


class _Batch:
    """Lines that become one message. size: characters, line breaks included."""

    __slots__ = ("lines", "size")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0

    def body(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def _json(envelope: Envelope | JsonArray) -> bytes:
    try:
        if isinstance(envelope, JsonArray):
            return _encoder.encode(envelope.items)
        return _encoder.encode(envelope)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise EncodingError(f"{envelope.kind} envelope: {error}") from None
